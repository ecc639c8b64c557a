"""Show a transcript in a terminal: text, route, confidence and RTFx, and the parts of a long recording."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.text import Text

from ssd_infer.cli.console import error_console
from ssd_infer.report.format import plain
from ssd_infer.strategies.ctc_draft.transcription import TranscribeOutput


def show(file: Path, out: TranscribeOutput, console: Console | None = None) -> None:
    """Print one recording's transcript on `console` (the output stream when None)."""
    console = console or Console(highlight=False, soft_wrap=True)
    facts = out.stats.report
    rate = "–" if facts["rtfx"] is None else f"{facts['rtfx']:.0f}"
    console.print(Text(plain(file), style="bold"))
    console.print(Text(f"  {plain(out.texts[0]) or '(nothing recognised)'}"))
    console.print(
        Text(
            f"  route {out.routes[0]} · confidence {out.confidences[0]:.2f} · "
            f"RTFx {rate} ({facts['audio_seconds']:.1f} s of audio in {facts['seconds']:.2f} s)",
            style="dim",
        )
    )
    if len(out.segments[0]) > 1:
        for part in out.segments[0]:
            line = f"    {part.start:8.1f}–{part.end:.1f} s  {part.route:<8} {part.confidence:.2f}  {plain(part.text)}"
            console.print(Text(line, style="dim"))


def show_not_tried(files: list[Path], names: int = 3) -> None:
    """Say on the error stream how many files of a folder were left out for their names, and the first few of them."""
    if not files:
        return
    first = ", ".join(plain(file.name) for file in files[:names]) + (", …" if len(files) > names else "")
    count = "1 file was" if len(files) == 1 else f"{len(files)} files were"
    error_console().print(Text(f"{count} not tried, having no audio file's name: {first}"))

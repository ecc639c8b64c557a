"""Write report files so that a reader sees the old one or the new one, never half of one."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ssd_infer.atomic import write_text
from ssd_infer.errors import OutputError
from ssd_infer.jsonio import strict, to_json
from ssd_infer.report.html import render_html
from ssd_infer.report.markdown import render_markdown
from ssd_infer.report.schema import ReportError, validate


@contextmanager
def writing(key: str, path: Path) -> Iterator[None]:
    """Turn an OSError of the block into one OutputError that names the option `key` and the `path` it gave."""
    try:
        yield
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise OutputError(
            f"{key}: must be a place that can be written to (got {str(path)!r}: {why}); choose another"
        ) from error


def check_writable(key: str, folder: Path) -> None:
    """Raise OutputError when `folder` could not be made and written to; leaves nothing behind."""
    with writing(key, folder):
        nearest = next(part for part in (folder, *folder.absolute().parents) if part.exists())
        tempfile.TemporaryFile(dir=nearest).close()


def dump_json(value: object) -> str:
    """Serialise with a stable layout; what is not finite is null with a reason, what is not plain JSON raises."""
    return to_json(value, indent=1) + "\n"


def write_report(
    report: dict[str, Any], folder: Path, samples: Iterable[dict[str, Any]] | None = None
) -> Path:
    """Validate, then write `report.json`, `report.md`, `report.html` and `samples.jsonl`; return the JSON's path.

    Raises `ReportError` before anything is written when the report breaks its schema. `report.json` is renamed
    into place last, so its presence means that the others are there too.
    """
    report = strict(report)
    validate(report)
    folder = Path(folder)
    text = dump_json(report)
    if samples is not None:
        lines = (to_json(sample) for sample in samples)
        write_text(folder / "samples.jsonl", "".join(f"{line}\n" for line in lines))
    write_text(folder / "report.md", render_markdown(report))
    write_text(folder / "report.html", render_html(report))
    write_text(folder / "report.json", text)
    return folder / "report.json"


def read_report(path: Path) -> dict[str, Any]:
    """Read and validate a report given its file or its folder; raise `ReportError` naming the path otherwise."""
    path = Path(path)
    path = path / "report.json" if path.is_dir() else path
    try:
        report: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise ReportError(f"{path}: no such report") from error
    except (OSError, ValueError) as error:
        raise ReportError(f"{path}: not a readable report ({error})") from error
    try:
        validate(report)
    except ReportError as error:
        raise ReportError(f"{path}: {error}") from error
    return report

"""Set checkpoint reports side by side; the first one is what the others are held against.

    python -m ssd_infer.compare A/report.json B/report.json [--markdown FILE] [--json FILE] [--strict]

Exit code 0; 1 with --strict when something got worse; 2 when a report cannot be read or an output not written.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from ssd_infer.atomic import write_text
from ssd_infer.cli.console import print_error
from ssd_infer.errors import SSDError
from ssd_infer.report.comparison import compare
from ssd_infer.report.comparison_text import render_comparison, terminal_tables, worse_lines
from ssd_infer.report.format import plain
from ssd_infer.report.write import dump_json, read_report, writing


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    options = _parser().parse_args(arguments)
    try:
        comparison = compare([read_report(Path(path)) for path in options.reports])
        show(comparison)
        _write("--markdown", options.markdown, render_comparison(comparison))
        _write("--json", options.json, dump_json(comparison))
    except SSDError as error:
        print_error(error)
        return 2
    return 1 if options.strict and comparison["regressions"] else 0


def show(comparison: dict[str, Any], console: Console | None = None) -> None:
    """Print a comparison: summary, strategies, regressions, remarks."""
    console = console or Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, 140)
    for table in terminal_tables(comparison):
        console.print(table)
        console.print()
    for line in worse_lines(comparison):
        console.print(Text(f"worse: {plain(line)}", style="bold red"), soft_wrap=True)
    if not comparison["regressions"]:
        console.print(Text("nothing got worse", style="green"))
    for line in comparison["remarks"]:
        console.print(Text(f"note: {plain(line)}", style="yellow"), soft_wrap=True)


def _write(option: str, path: str | None, text: str) -> None:
    if path:
        with writing(option, Path(path)):
            write_text(Path(path), text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ssd_infer.compare", description="Set checkpoint reports side by side."
    )
    parser.add_argument(
        "reports",
        nargs="+",
        metavar="REPORT",
        help="report.json, or the folder it is in; the first is the reference",
    )
    parser.add_argument("--markdown", metavar="FILE", help="also write the comparison as Markdown")
    parser.add_argument("--json", metavar="FILE", help="also write the comparison as JSON")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when something got worse")
    return parser


if __name__ == "__main__":
    sys.exit(main())

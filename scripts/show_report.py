"""Show the newest report of a run in the terminal, and where its page is.

python scripts/show_report.py outputs/layerskip/default
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ssd_infer.checkpoint.steps import step_number
from ssd_infer.cli.console import print_error
from ssd_infer.errors import CheckpointError, SSDError
from ssd_infer.report.terminal import print_report
from ssd_infer.report.write import read_report


def newest_report(directory: Path) -> Path:
    """Return the report of the highest step below `directory`; raises CheckpointError if there is none."""
    if (directory / "report.json").is_file():
        return directory / "report.json"
    found = [
        file for file in (directory / "reports").glob("step-*/report.json") if step_number(file.parent) >= 0
    ]
    if not found:
        raise CheckpointError(
            f"{directory}: holds no report.json; evaluate with python -m ssd_infer checkpoint=DIR"
        )
    return max(found, key=lambda file: step_number(file.parent))


def main(arguments: list[str] | None = None) -> int:
    """Print the report and return the exit code."""
    parser = argparse.ArgumentParser(description="Show the newest report of a run.")
    parser.add_argument("directory", type=Path, help="run directory, or the directory of one report")
    try:
        path = newest_report(parser.parse_args(arguments).directory)
        report = read_report(path)
    except SSDError as error:
        print_error(error)
        return 2
    print_report(report, path.parent)
    return 0


if __name__ == "__main__":
    sys.exit(main())

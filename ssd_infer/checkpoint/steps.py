"""Read the step out of a directory's name."""

from __future__ import annotations

from pathlib import Path


def step_number(folder: Path) -> int:
    """Return N of a directory called `step-N`, and -1 of any other, such as a copy `step-N.bak`."""
    digits = folder.name.removeprefix("step-")
    return int(digits) if digits.isdecimal() else -1

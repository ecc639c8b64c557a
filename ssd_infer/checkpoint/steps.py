"""Which directories of a run are checkpoints of the step they are named after.

A name counts only if it is the one its number would be given: `step-7`, and not `step-007` or `step-²`. And what is
inside must agree, or a copy that somebody renamed would pass for a step that was never trained.
"""

from __future__ import annotations

from pathlib import Path

from ssd_infer.checkpoint.manifest import read_record
from ssd_infer.jsonio import from_json

TRAINER_STATE = "trainer_state.json"


def step_number(folder: Path) -> int:
    """Return N of a directory called `step-N`, and -1 of any other, such as a copy `step-N.bak` or `step-007`."""
    digits = folder.name.removeprefix("step-")
    number = int(digits) if digits.isascii() and digits.isdigit() else -1
    return number if folder.name == f"step-{number}" else -1


def recorded_step(folder: Path) -> int | None:
    """Return the step a checkpoint itself says it is of, None where it says nothing that can be read."""
    found = read_record(folder).get("step")
    return found if isinstance(found, int) else trained_step(folder)


def trained_step(folder: Path) -> int | None:
    """Return the step the trainer's own state in a checkpoint says, the one training would go on from."""
    try:
        state = from_json((folder / TRAINER_STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    found = state.get("global_step") if isinstance(state, dict) else None
    return found if isinstance(found, int) else None


def misnamed(folder: Path) -> str | None:
    """Return why the directory `folder` is no checkpoint of the step in its name, None if it is one."""
    named = step_number(folder)
    if named < 0:
        return "its name is not one a checkpoint is given, step-N with N as it is written"
    recorded = recorded_step(folder)
    if recorded is not None and recorded != named:
        return f"it holds step {recorded}, so it is a renamed copy"
    return None


def checkpoint_folders(directory: Path) -> list[Path]:
    """Return the checkpoints of `RUN/checkpoints`, by step; one that says nothing of its step counts by its name."""
    named = (path for path in directory.glob("step-*") if step_number(path) >= 0 and path.is_dir())
    return sorted((path for path in named if misnamed(path) is None), key=step_number)


def misnamed_folders(directory: Path) -> dict[Path, str]:
    """Return what is called like a checkpoint in `RUN/checkpoints` and is none of that step, with the reasons."""
    found = {path: misnamed(path) for path in sorted(directory.glob("step-*")) if path.is_dir()}
    return {path: reason for path, reason in found.items() if reason is not None}

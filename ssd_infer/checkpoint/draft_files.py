"""A draft module on disk: two files beside an unchanged model, or in a folder of their own that names the model.

A folder of its own holds no copy of the model; `draft_base` finds that.
"""

from __future__ import annotations

import os
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn

from ssd_infer.atomic import write_bytes, write_text
from ssd_infer.checkpoint.content import file_digest, loaded_from
from ssd_infer.checkpoint.draft_spec import FACTS, WEIGHTS, DraftSpec, has_draft, spec_from
from ssd_infer.errors import CheckpointError, OutputError, Problem
from ssd_infer.jsonio import from_json, to_json

_LARGEST = 1 << 20
"""Bytes of facts that are read."""
_carried: weakref.WeakKeyDictionary[nn.Module, Path] = weakref.WeakKeyDictionary()


def save_draft(folder: str | Path, module: nn.Module, spec: DraftSpec) -> None:
    """Write `module`, described by `spec` with its base, into `folder`; a reader sees a whole pair, or refuses.

    Raises OutputError where it cannot be written.
    """
    from safetensors.torch import save as as_bytes

    place, base = Path(folder), spec.base
    if Path(base.name).is_dir() and base.name:
        relative = os.path.relpath(base.name, place.resolve())
        spec = replace(spec, base=replace(base, relative=Path(relative).as_posix()))
    state = {name: weight.detach().cpu().contiguous() for name, weight in module.state_dict().items()}
    try:
        write_bytes(place / WEIGHTS, as_bytes(state))
        facts = spec.to_dict() | {"file": file_digest(place / WEIGHTS)}
        write_text(place / FACTS, to_json(facts, indent=1, sort_keys=True) + "\n")
    except OSError as error:
        raise OutputError(
            f"{place}: the draft module cannot be written ({error.strerror or error})"
        ) from error


def read_spec(folder: Path) -> DraftSpec:
    """Return what the draft module in `folder` is; raises CheckpointError with everything that is wrong with its facts.

    The weights are hashed, since they and their facts must be of one save.
    """
    try:
        if (folder / FACTS).stat().st_size > _LARGEST:
            raise CheckpointError(
                f"checkpoint: {folder / FACTS} is no description of a draft module: it is too long"
            )
        stored = from_json((folder / FACTS).read_text("utf-8"))
        digest = file_digest(folder / WEIGHTS)
    except (OSError, ValueError, RecursionError) as error:
        what = getattr(error, "strerror", None) or type(error).__name__
        raise CheckpointError(
            f"checkpoint: the draft module in {str(folder)!r} cannot be read ({what}); {FACTS} and "
            f"{WEIGHTS} belong together"
        ) from error
    spec, problems = spec_from(stored)
    if spec is None:
        raise refused(folder, problems)
    if stored.get("file") != digest:
        rule = f"must be the digest of {WEIGHTS}"
        raise refused(folder, [Problem("draft.file", rule, digest, "copy both files of one save")])
    return spec


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Return the weights of the draft module in `folder`; raises CheckpointError where they are damaged."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(folder / WEIGHTS)
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(
            f"checkpoint: the weights in {str(folder / WEIGHTS)!r} are damaged ({error}); copy or train them again"
        ) from error


def refused(folder: Path, problems: list[Problem]) -> CheckpointError:
    """Return an error that says every reason why the draft module in `folder` is not taken."""
    lines = "\n".join(str(problem) for problem in problems)
    return CheckpointError(f"checkpoint: the draft module in {str(folder)!r} does not fit\n{lines}")


def carry(model: nn.Module, folder: Path) -> None:
    """Let `model` draft with the module in `folder`, as long as it lives; the model itself is not touched."""
    _carried[model] = folder


def draft_folder(model: nn.Module) -> Path | None:
    """Return where the draft module of `model` lies: the folder it was loaded by, or its own; None without one."""
    if model in _carried:
        return _carried[model]
    own = loaded_from(cast(Any, model).config)
    return own if own is not None and has_draft(own) else None

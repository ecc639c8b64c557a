"""Draft modules from disk: built for the model they belong to, and kept as long as that lives."""

from __future__ import annotations

import copy
import itertools
import weakref
from pathlib import Path

from torch import Tensor, nn

from ssd_infer.checkpoint.draft_base import check_base
from ssd_infer.checkpoint.draft_files import WEIGHTS, draft_folder, is_draft_alone, read_spec, read_weights
from ssd_infer.checkpoint.draft_spec import DraftSpec
from ssd_infer.errors import CheckpointError, SSDError
from ssd_infer.models.draft_modules.build import build
from ssd_infer.models.draft_modules.module import DraftModule

_SERIALS = itertools.count()
_kept: weakref.WeakKeyDictionary[nn.Module, tuple[Path | None, DraftModule]] = weakref.WeakKeyDictionary()


def load_draft(folder: str | Path, model: nn.Module) -> DraftModule:
    """Return the draft module in `folder`, in evaluation mode, with the device and dtype of `model`.

    Raises CheckpointError where files are damaged, belong to another model or tokenizer, or do not fit its shapes;
    UnsupportedModelError where such a module cannot be made of the model.
    """
    place = Path(folder)
    spec = read_spec(place)
    check_base(place, spec, model)
    return _filled(place, spec, model)


def _filled(folder: Path, spec: DraftSpec, model: nn.Module) -> DraftModule:
    stored = read_weights(folder)
    try:
        module = build(spec, model, stored.get("ids"))
    except SSDError as error:
        raise CheckpointError(
            f"checkpoint: the draft module in {str(folder)!r} does not fit\n{error}"
        ) from error
    if wrong := _misfits(module.state_dict(), stored):
        raise CheckpointError(
            f"checkpoint: the weights in {str(folder / WEIGHTS)!r} do not fit ({wrong}); copy or train them again"
        )
    module.load_state_dict(stored)
    return module.eval().requires_grad_(requires_grad=False)


def _misfits(wanted: dict[str, Tensor], stored: dict[str, Tensor]) -> str:
    """Say which weights are missing, unknown, of another shape or of another kind of number; "" where all fit."""
    found = [f"missing: {name}" for name in wanted.keys() - stored.keys()]
    found += [f"unknown: {name}" for name in stored.keys() - wanted.keys()]
    for name in sorted(wanted.keys() & stored.keys()):
        own, read = wanted[name], stored[name]
        if own.shape != read.shape or own.is_floating_point() != read.is_floating_point():
            found.append(f"{name} must be {tuple(own.shape)}, not {tuple(read.shape)}")
    return "; ".join(sorted(found)[:3])


def put_beside(model: nn.Module, module: DraftModule) -> None:
    """Let `model` draft with `module` as it is now, in place of what lies beside it on disk, as long as it lives."""
    dtype = next(model.parameters()).dtype
    frozen = copy.deepcopy(module).to(dtype).eval().requires_grad_(requires_grad=False)
    _keep(model, None, frozen)


def draft_beside(model: nn.Module) -> DraftModule | None:
    """Return the module that `model` drafts with: one put beside it, or one from disk, read once; None without one.

    Raises as `load_draft` does.
    """
    known, folder = _kept.get(model), draft_folder(model)
    if known is not None and known[0] in (None, folder):
        return known[1]
    if folder is None:
        return None
    # The model of a folder of its own was compared when both were loaded; of others nothing is known yet.
    module = (
        _filled(folder, read_spec(folder), model) if is_draft_alone(folder) else load_draft(folder, model)
    )
    return _keep(model, folder, module)


def _keep(model: nn.Module, folder: Path | None, module: DraftModule) -> DraftModule:
    """Keep `module` for `model`, under a number that no other has: what is measured of it is told apart by that."""
    module.serial = next(_SERIALS)
    _kept[model] = (folder, module)
    return module

"""Draft modules from disk: built for the model they belong to, and kept as long as that lives."""

from __future__ import annotations

import copy
import itertools
import weakref
from pathlib import Path

from torch import Tensor, nn

from ssd_infer.checkpoint.draft_base import check_base
from ssd_infer.checkpoint.draft_files import draft_folder, read_spec, read_weights, refused
from ssd_infer.checkpoint.draft_spec import WEIGHTS, DraftSpec, is_draft_alone
from ssd_infer.errors import CheckpointError, Problem, SSDError
from ssd_infer.models.draft_modules.build import build
from ssd_infer.models.draft_modules.module import DraftModule

_SERIALS = itertools.count()
_put: weakref.WeakKeyDictionary[nn.Module, dict[str, DraftModule]] = weakref.WeakKeyDictionary()
_read: weakref.WeakKeyDictionary[nn.Module, tuple[Path, DraftModule]] = weakref.WeakKeyDictionary()


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
    if problems := _unlike(spec, stored):
        raise refused(folder, problems)
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


def _unlike(spec: DraftSpec, stored: dict[str, Tensor]) -> list[Problem]:
    """Return the sizes of `spec` that no stored weight has: nothing is made of a size that was made up."""
    sizes = {size for weight in stored.values() for size in weight.shape}
    found = {key: getattr(spec, key) for key in ("rank", "mlp_width")}
    wrong = {key: value for key, value in found.items() if value and value not in sizes}
    if spec.heads > len(stored):
        wrong["heads"] = spec.heads
    return [
        Problem(f"draft.{key}", f"must be that of {WEIGHTS}", value, "copy both files of one save")
        for key, value in wrong.items()
    ]


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
    """Let `model` draft with `module` as it is now, in place of what lies beside it on disk, as long as it lives.

    There may be one of each form.
    """
    dtype = next(model.parameters()).dtype
    frozen = copy.deepcopy(module).to(dtype).eval().requires_grad_(requires_grad=False)
    _put.setdefault(model, {})[module.spec.form] = _numbered(frozen)


def draft_beside(model: nn.Module, form: str) -> DraftModule | None:
    """Return what `model` drafts with: a module of `form` put beside it, or any from disk, read once; None without.

    Raises as `load_draft` does.
    """
    put = _put.get(model, {}).get(form)
    if put is not None:
        return _placed(put, model)
    folder, known = draft_folder(model), _read.get(model)
    if folder is None:
        return None
    if known is None or known[0] != folder:
        # The model of a folder of its own was compared when both were loaded; of others nothing is known yet.
        alone = is_draft_alone(folder)
        module = _filled(folder, read_spec(folder), model) if alone else load_draft(folder, model)
        known = _read[model] = folder, _numbered(module)
    return _placed(known[1], model)


def _placed(module: DraftModule, model: nn.Module) -> DraftModule:
    """Return `module` where `model` is now, and in its precision: it may have been moved since."""
    own, like = next(module.parameters()), next(model.parameters())
    if not like.is_meta and (own.device, own.dtype) != (like.device, like.dtype):
        module.to(like.device, like.dtype)
    return module


def _numbered(module: DraftModule) -> DraftModule:
    """Give `module` a number that no other has: what is measured of it is told apart by that."""
    module.serial = next(_SERIALS)
    return module

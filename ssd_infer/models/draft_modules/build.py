"""Make the draft module that a specification describes."""

from __future__ import annotations

from torch import Tensor, nn

from ssd_infer.checkpoint.draft_spec import DraftSpec
from ssd_infer.engine.target import Target
from ssd_infer.errors import ConfigError, Problem
from ssd_infer.models.draft_modules.exit_form import ExitModule
from ssd_infer.models.draft_modules.heads_form import HeadsModule
from ssd_infer.models.draft_modules.module import DraftModule
from ssd_infer.models.draft_modules.mtp_form import MtpModule

FORMS: dict[str, type[DraftModule]] = {"exit": ExitModule, "mtp": MtpModule, "heads": HeadsModule}


def build(spec: DraftSpec, model: nn.Module, ids: Tensor | None = None) -> DraftModule:
    """Return an untrained module of `spec` for `model`, whose parameters are its own alone.

    `ids` `(K,)` are the tokens it looks at, ascending, where `spec.rows` asks for some. Raises ConfigError where the
    specification contradicts itself or the model, UnsupportedModelError where the model has no such part.
    """
    problems, target = spec.problems(), Target.of(model)
    if spec.form == "exit" and spec.exit_layer >= target.num_layers:
        rule = f"must be < {target.num_layers}, the layers of this model"
        problems.append(Problem("draft.exit_layer", rule, spec.exit_layer, "try a quarter of them"))
    if spec.rows > target.vocab_size:
        rule = f"must be <= {target.vocab_size}, the vocabulary of this model"
        problems.append(Problem("draft.rows", rule, spec.rows, "0 means all"))
    if not _fitting(ids, spec.rows, target.vocab_size):
        rule = f"must be {spec.rows} ids of the vocabulary, ascending"
        problems.append(Problem("draft.ids", rule, None if ids is None else len(ids), "0 rows need none"))
    if problems:
        raise ConfigError(problems)
    return FORMS[spec.form](spec, target, ids)


def _fitting(ids: Tensor | None, rows: int, vocabulary: int) -> bool:
    """Tell whether `ids` are as many as `rows` says, each within the vocabulary and above the one before."""
    if ids is None or rows == 0:
        return ids is None and rows == 0
    return ascending(ids, rows, vocabulary)


def ascending(ids: Tensor, rows: int, vocabulary: int) -> bool:
    """Tell whether `ids` are `(rows,)` ids of the vocabulary, each above the one before."""
    if ids.dim() != 1 or len(ids) != rows or ids.is_floating_point():
        return False
    rising = bool((ids[1:] > ids[:-1]).all())
    return rising and int(ids[0]) >= 0 and int(ids[-1]) < vocabulary

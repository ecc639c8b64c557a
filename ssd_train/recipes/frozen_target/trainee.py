"""What the trainer trains: draft modules alone, with the frozen target beside them and not among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from ssd_infer.checkpoint.draft_base import base_identity
from ssd_infer.checkpoint.draft_spec import DraftSpec
from ssd_infer.models.draft_modules.build import build
from ssd_infer.models.draft_modules.module import DraftModule
from ssd_train.recipes.frozen_target.frozen import Frozen
from ssd_train.recipes.frozen_target.settings import FrozenTargetConfig


class Trainee(nn.Module):
    """One draft module, or one for each exit, in float32."""

    _no_split_modules = None

    def __init__(self, frozen: Frozen, specs: Sequence[DraftSpec], ids: Tensor | None) -> None:
        """Build the modules of `specs`, by name; `ids` `(K,)` are the tokens they look at, None for all."""
        super().__init__()
        self.__dict__["frozen"] = frozen
        self.drafts = nn.ModuleDict({spec_name(spec): _made(spec, frozen, ids) for spec in specs})

    @property
    def target(self) -> Frozen:
        """The frozen model."""
        return cast(Frozen, self.__dict__["frozen"])

    def draft(self, name: str) -> DraftModule:
        """Return the module called `name`."""
        return cast(DraftModule, self.drafts[name])

    @property
    def names(self) -> list[str]:
        """Names of the modules, in the order they were asked for."""
        return list(self.drafts)

    def forward(self, *_: Any, **__: Any) -> Any:
        """Refuse: a recipe's step runs the modules, inside this call where an engine needs it."""
        raise RuntimeError("draft modules are run by their recipe")

    def rows(self, name: str) -> Tensor:
        """Return the rows `(K, d)` that the states of a module are multiplied with."""
        own = self.draft(name).row_weight
        return self.target.head.weight.float() if own is None else own

    def ids(self) -> Tensor:
        """Return the tokens that the modules look at, `(K,)`, ascending."""
        found = self.draft(self.names[0]).ids
        head = self.target.head.weight
        return torch.arange(head.shape[0], device=head.device) if found is None else found

    def whole(self, name: str, state: Mapping[str, Tensor]) -> DraftModule:
        """Return a copy of module `name` with the weights that `state`, of the whole trainee, has for it."""
        old = self.draft(name)
        ids = None if old.ids is None else old.ids.cpu().to(self.target.target.device)
        made = _made(old.spec, self.target, ids)
        prefix = f"drafts.{name}."
        made.load_state_dict(
            {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
        )
        return made


def spec_name(spec: DraftSpec) -> str:
    """Return what metrics call a module: `exit_E`, or its form."""
    return f"exit_{spec.exit_layer}" if spec.form == "exit" else spec.form


def specs_of(settings: FrozenTargetConfig, frozen: Frozen, rows: int) -> list[DraftSpec]:
    """Return the specifications of all modules a run trains; `rows` 0 looks at the whole vocabulary."""
    spec = DraftSpec(
        form=settings.form,
        module=settings.module,
        rank=settings.rank if settings.module == "rank" else 0,
        mlp_width=settings.mlp_width if settings.module == "attention_mlp" else 0,
        rollout=settings.rollout if settings.form == "mtp" else 0,
        heads=settings.heads if settings.form == "heads" else 0,
        exit_layer=1 if settings.form == "exit" else 0,
        rows=rows,
        own_rows=settings.own_rows,
        base=base_identity(frozen.model),
    )
    if settings.form != "exit":
        return [spec]
    exits = settings.exits or [max(1, frozen.target.num_layers // 10)]
    return [replace(spec, exit_layer=layer) for layer in exits]


def _made(spec: DraftSpec, frozen: Frozen, ids: Tensor | None) -> DraftModule:
    """Return a module in float32, whatever the target computes in."""
    found: DraftModule = build(spec, frozen.model, ids).float()
    return found.train()

"""Form `exit`: a module on the states after a shallow layer of the target (Kangaroo, arXiv 2404.18911)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ssd_infer.checkpoint.draft_spec import DraftSpec
from ssd_infer.engine.target import Target
from ssd_infer.errors import UnsupportedModelError
from ssd_infer.models.draft_modules.bodies import run_body, silence
from ssd_infer.models.draft_modules.module import DraftModule


class ExitModule(DraftModule):
    """q = softmax(W · norm(body(h_E))); with a silent body this is the untrained exit."""

    def __init__(self, spec: DraftSpec, target: Target, ids: Tensor | None) -> None:
        """Check that layers are left to verify with, and begin as the untrained exit."""
        if spec.exit_layer >= target.num_layers:
            raise UnsupportedModelError(
                f"{target.name} has {target.num_layers} layers, and none is left after an exit at {spec.exit_layer}"
            )
        super().__init__(spec, target, ids)
        silence(target, self.body)

    def over_block(self, states: Tensor, positional: dict[str, Any]) -> Tensor:
        """Return normed states `(B, T, d)`, ready for the head, of states `(B, T, d)` after layer E."""
        out: Tensor = self.norm(run_body(self.body, states, positional))
        return out

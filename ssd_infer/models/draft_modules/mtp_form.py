"""Form `mtp`: a module on the target's last state and the next token's embedding, then on its own output.

s_t = body(M · [norm h_t ; norm e_{t+1}]) predicts token t+2 (Gloeckle et al. 2404.19737, DeepSeek-V3 2412.19437). For
the tokens after that s_t takes the place of h_{t+1}, which nobody has computed, so the module is trained on rollouts of
its own (the training-time test of EAGLE-3, arXiv 2503.01840).
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from ssd_infer.checkpoint.draft_spec import DraftSpec
from ssd_infer.engine.model_view import cache_keyword
from ssd_infer.engine.target import Target
from ssd_infer.models.draft_modules.bodies import run_body
from ssd_infer.models.draft_modules.module import DraftModule
from ssd_infer.models.draft_modules.rollout import StepKeys, step_arguments


class MtpModule(DraftModule):
    """A state and the embedding of the token after it → the next state."""

    def __init__(self, spec: DraftSpec, target: Target, ids: Tensor | None) -> None:
        """Begin with the sum of both normed inputs, and a copy of the target's last layer."""
        super().__init__(spec, target, ids)
        self.norm_state, self.norm_embedding = copy.deepcopy(self.norm), copy.deepcopy(self.norm)
        like, size = next(target.embedding.parameters()), int(target.config.hidden_size)
        self.join = nn.Linear(2 * size, size, bias=False, device=like.device, dtype=like.dtype)
        unit = torch.eye(size, device=like.device, dtype=like.dtype)
        with torch.no_grad():
            self.join.weight.copy_(torch.cat([unit, unit], dim=1))

    def joined(self, states: Tensor, embeddings: Tensor) -> Tensor:
        """Return what the body is given for states `(…, d)` and the embeddings `(…, d)` of the tokens after them."""
        out: Tensor = self.join(torch.cat([self.norm_state(states), self.norm_embedding(embeddings)], dim=-1))
        return out

    def over_block(
        self, states: Tensor, embeddings: Tensor, positional: dict[str, Any]
    ) -> tuple[Tensor, Tensor]:
        """Return the next states `(B, T, d)` of `states`, un-normed and normed.

        `embeddings` `(B, T, d)` are those of the tokens after each; every position attends to those before it.
        """
        found = run_body(self.body, self.joined(states, embeddings), positional)
        return found, self.norm(found)

    def rollout(
        self, states: Tensor, embeddings: Tensor, positional: dict[str, Any], steps: int
    ) -> list[Tensor]:
        """Return normed states of `steps` steps, `(B, T-k, d)` at step k, whose row t predicts token t+1+k.

        `states` `(B, T, d)` are the target's last ones before its norm, `embeddings` `(B, T, d)` what enters its first
        layer, both of the same tokens. Step k stands at t+k-1 and attends to keys of the target's states up to t, and
        to those of its own outputs after it, as decoding does.
        """
        return [self.norm(one) for one in self.rolled(states, embeddings, positional, steps)]

    def rolled(
        self, states: Tensor, embeddings: Tensor, positional: dict[str, Any], steps: int
    ) -> list[Tensor]:
        """Return what `rollout` does, un-normed."""
        found: list[Tensor] = []
        keys, length = StepKeys(), states.shape[1]
        for step in range(1, steps + 1):
            before = found[-1] if found else states
            given = self.joined(before[:, : length - step], embeddings[:, step:])
            found.append(run_body(self.body, given, self._arguments(positional, keys, step, given)))
        return found

    def _arguments(
        self, positional: dict[str, Any], keys: StepKeys, step: int, like: Tensor
    ) -> dict[str, Any]:
        if self.thin:
            return {}
        keys.begin(step, like.shape[1])
        more = {cache_keyword(self.body.forward): keys, "use_cache": True}
        return step_arguments(positional, step, like) | more

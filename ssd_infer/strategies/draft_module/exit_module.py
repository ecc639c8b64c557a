"""Draft `exit_module`: the first E layers, a trained module after them, and its norm before the head.

Kangaroo, arXiv 2404.18911. Verification goes on from the exit states, as with `early_exit`: the module never touches
what the target computes, and a silent module drafts what the bare exit drafts.
"""

from __future__ import annotations

from typing import ClassVar, cast

import torch
from torch import Tensor

from ssd_infer.engine.session import Feedback, Session
from ssd_infer.engine.target import Target
from ssd_infer.engine.window import Window
from ssd_infer.strategies.base import DraftParams
from ssd_infer.strategies.draft_module import EXIT_MODULE
from ssd_infer.strategies.draft_module.module_draft import ModuleDraft
from ssd_infer.strategies.draft_module.module_keys import Block


class ExitModuleDraft(ModuleDraft):
    """Draft with the first E layers and the module after them."""

    info = EXIT_MODULE
    form: ClassVar[str] = "exit"

    def __init__(self, session: Session, params: DraftParams) -> None:
        """Bind to `session`; `params` must have no `auto` left."""
        super().__init__(session, params)
        self.resume_layer = self.depth
        self._own: Tensor | None = None

    @classmethod
    def resumes(cls, target: Target) -> int:
        """Return E."""
        return cls.module_of(target).spec.exit_layer

    @property
    def depth(self) -> int:
        """Return E."""
        return self.module.spec.exit_layer

    def step(self, token: Tensor, offset: int) -> Tensor:
        """Run E layers and the module on one `token` `(B,)` a row; return `(B, 1, d)`."""
        session, target = self.session, self.session.target
        window = session.window(1, offset)
        hidden = target.embed_at(token.unsqueeze(1), window, session.cache)
        self._own = target.run(hidden, window, session.cache, 0, self.depth)
        return self._first(self._own) if offset == 0 else self.keys.run(self._own, window)

    def own_states(self, hidden: Tensor) -> Tensor:
        """Return the exit states of the last step."""
        del hidden
        return cast(Tensor, self._own)

    def beyond(self, own: Tensor, window: Window) -> Tensor:
        """Run the module on exit states `own` `(B, T, d)` of nodes at `window`, the root alone or others."""
        return self._first(own) if window.starts == self.session.lengths else self.keys.run(own, window)

    def _first(self, own: Tensor) -> Tensor:
        """Run the module on what waits and the pending token's exit state `(B, 1, d)`; return its state there."""
        keys, lengths = self.keys, self.session.lengths
        waiting = keys.due(lengths)
        for block in waiting[:-1]:
            keys.run_block(block)
        last = waiting[-1].and_one(own) if waiting else Block(list(lengths), [1] * len(lengths), own)
        hidden = last.last(keys.run_block(last))
        keys.lengths = [length + 1 for length in lengths]
        return hidden

    def verified(self, feedback: Feedback) -> Tensor | None:
        """Return the exit states that were drafted from, and that of the last draft, which verification ran."""
        hidden = feedback.proposal.hidden
        if hidden is None or hidden.shape[1] > feedback.proposal.width:
            return hidden
        return torch.cat([hidden, self.keys.passes.pop().states], dim=1)

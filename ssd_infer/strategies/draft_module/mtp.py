"""Draft `mtp`: a trained module on the target's last state and the next token's embedding, then on its own output.

Multi-token prediction (Gloeckle et al. 2404.19737, DeepSeek-V3 2412.19437). Drafting runs no layer of the target. The
module's slot t holds what it made of the state at t and token t+1, so that it ends one slot before the pending token.
"""

from __future__ import annotations

from typing import ClassVar, cast

import torch
from torch import Tensor

from ssd_infer.engine.session import Session
from ssd_infer.engine.tree_window import TreeWindow
from ssd_infer.engine.window import Window
from ssd_infer.models.draft_modules.mtp_form import MtpModule
from ssd_infer.strategies.base import DraftParams
from ssd_infer.strategies.draft_module import MTP
from ssd_infer.strategies.draft_module.module_draft import ModuleDraft
from ssd_infer.strategies.draft_module.module_keys import Block


class MtpDraft(ModuleDraft):
    """Draft with the module alone."""

    info = MTP
    form: ClassVar[str] = "mtp"

    def __init__(self, session: Session, params: DraftParams) -> None:
        """Bind to `session`; `params` must have no `auto` left."""
        super().__init__(session, params)
        self._states: Tensor | None = None
        """What the module returned last `(B, T, d)`: of one token a row, or of the nodes of a level from `_node` on."""
        self._node = 0

    @property
    def depth(self) -> int:
        """Return L."""
        return self.session.target.num_layers

    def stand(self) -> None:
        """Stand behind a first drafted token."""
        super().stand()
        self._states = self.no_states()

    def step(self, token: Tensor, offset: int) -> Tensor:
        """Run the module on one `token` `(B,)` a row and the state before it; return `(B, 1, d)`."""
        if offset == 0:
            self._states = self._first()
            return self._states
        embedded = self._embedded(token.unsqueeze(1), self.session.window(1, offset))
        given = self._joined(cast(Tensor, self._states), embedded)
        self._states = self.keys.run(given, self.session.window(1, offset - 1))
        return self._states

    def beyond(self, own: Tensor, window: Window) -> Tensor:
        """Run the module on embeddings `own` `(B, T, d)` of nodes at `window`, and the states of their parents."""
        nodes = cast(TreeWindow, window)
        if nodes.first == 0:
            self._states = self._first()
        else:
            parents = nodes.tree.row(0)[nodes.first - 1 : nodes.first - 1 + nodes.width]
            before = cast(Tensor, self._states)[:, [parent - self._node for parent in parents]]
            bases = [base - 1 for base in nodes.bases]
            place = TreeWindow(self.session.geometry, bases, nodes.tree, nodes.first, nodes.width)
            self._states = self.keys.run(self._joined(before, own), place)
        self._node = nodes.first
        return self._states

    def _first(self) -> Tensor:
        """Run the module on all verified states that wait; return what it makes of the last one of each row."""
        hidden: Tensor | None = None
        for block in self.keys.due(self.session.lengths):
            hidden = block.last(self.keys.run_block(block, self._followed(block)))
        assert hidden is not None
        return hidden

    def _followed(self, block: Block) -> Tensor:
        """Return what the body is given for a block: its states, and the tokens that came after each."""
        width = block.states.shape[1]
        begins = [start + 1 for start in block.starts]
        tokens = [
            [*row.tokens[begin : begin + count], *[0] * (width - count)]
            for row, begin, count in zip(self.session.rows, begins, block.counts, strict=True)
        ]
        ids = torch.tensor(tokens, dtype=torch.long, device=block.states.device)
        return self._joined(block.states, self._embedded(ids, self.session.window_at(begins, width)))

    def _embedded(self, ids: Tensor, window: Window) -> Tensor:
        """Return what enters the target's first layer for `ids` `(B, T)` at `window`."""
        return self.session.target.embed_at(ids, window, self.keys.cache)

    def _joined(self, states: Tensor, embeddings: Tensor) -> Tensor:
        return cast(MtpModule, self.module).joined(states, embeddings)

"""Draft `heads`: blocks on the target's last state, one for each token ahead; made for trees.

Medusa, arXiv 2401.10774. All drafts of a round hang on the last verified state and on nothing that was drafted, so a
round runs no layer, and every node of a depth has the same children to choose from.
"""

from __future__ import annotations

from typing import ClassVar, cast

from torch import Tensor

from ssd_infer.engine.session import Session
from ssd_infer.engine.target import Target
from ssd_infer.engine.tree_window import TreeWindow
from ssd_infer.engine.window import Window
from ssd_infer.models.draft_modules.heads_form import HeadsModule
from ssd_infer.strategies.base import DraftParams
from ssd_infer.strategies.draft_module import HEADS
from ssd_infer.strategies.draft_module.module_draft import ModuleDraft


class HeadsDraft(ModuleDraft):
    """Draft at most as many tokens as there are blocks."""

    info = HEADS
    form: ClassVar[str] = "heads"

    def __init__(self, session: Session, params: DraftParams) -> None:
        """Bind to `session`; `params` must have no `auto` left."""
        super().__init__(session, params)
        self._last: Tensor | None = None
        """The last verified state of each row `(B, 1, d)`."""

    @classmethod
    def farthest(cls, target: Target) -> int:
        """Return how many blocks there are."""
        return cls.module_of(target).spec.heads

    @property
    def depth(self) -> int:
        """Return L."""
        return self.session.target.num_layers

    def stand(self) -> None:
        """Stand behind a first drafted token."""
        self._last = self.no_states()

    def step(self, token: Tensor, offset: int) -> Tensor:
        """Return the state `(B, 1, d)` from which the token after the next `offset` is drafted."""
        del token
        if offset == 0:
            for block in self.keys.due(self.session.lengths):
                self._last = block.last(block.states)
        ahead = min(offset, self.module.spec.heads - 1)
        return cast(HeadsModule, self.module).body.one(cast(Tensor, self._last), ahead)

    def beyond(self, own: Tensor, window: Window) -> Tensor:
        """Return states `(B, T, d)` for the children of nodes at `window`, which are all of one depth."""
        nodes = cast(TreeWindow, window)
        depth = nodes.tree.levels[0][nodes.first]
        return self.step(self.session.pending, depth).expand(-1, own.shape[1], -1)

"""What a draft asks of its head, and the target's own as a draft head."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from ssd_infer.engine.laws import Scored
from ssd_infer.engine.target import Target

if TYPE_CHECKING:
    from ssd_infer.engine.session import Row


class DraftHead(ABC):
    """Score hidden states of a draft; every logit is that of the target's own head."""

    kind: ClassVar[str]

    @abstractmethod
    def scores(self, hidden: Tensor) -> Scored:
        """Return the scores `(…, B, T, K)` of un-normed states `(…, B, T, d)`, those of all rows in their order."""

    def follow(self, rows: Sequence[Row]) -> None:
        """Take in what the active `rows` have committed since the last round, and which of them have ended."""
        del rows


class FullHead(DraftHead):
    """The target's own head."""

    kind = "full"

    def __init__(self, target: Target) -> None:
        """Borrow the head of `target`."""
        self.target = target

    def scores(self, hidden: Tensor) -> Scored:
        """Return the scores of all of V."""
        return Scored(self.target.logits(hidden))

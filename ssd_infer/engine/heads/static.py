"""Draft head `static`: the same K tokens at every position (FR-Spec, arXiv 2502.14856)."""

from __future__ import annotations

from torch import Tensor

from ssd_infer.engine.heads.head import DraftHead
from ssd_infer.engine.heads.rows import HeadRows, rows_of
from ssd_infer.engine.laws import Scored
from ssd_infer.engine.target import Target


class StaticHead(DraftHead):
    """Score the tokens `ids` `(K,)`, which ascend."""

    kind = "static"

    def __init__(self, target: Target, ids: Tensor, rows: HeadRows | None = None) -> None:
        """Copy the rows of `ids`, or share `rows`, a copy made before."""
        self.target, self.ids = target, ids.to(target.device)
        self.rows = rows_of(target, self.ids) if rows is None else rows

    def scores(self, hidden: Tensor) -> Scored:
        """Return the scores of these K tokens."""
        return Scored(self.target.leave(self.rows.times(self.target.normed(hidden))), self.ids)

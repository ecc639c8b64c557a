"""Draft `repeat_last`: guess that the last k tokens of the text come again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch

from ssd_infer.engine.session import Feedback, Proposal, Session
from ssd_infer.engine.target import Target
from ssd_infer.errors import Problem
from ssd_infer.report.table import Plot, Series, Table
from ssd_infer.strategies.base import DraftParams, Strategy, at_least
from ssd_infer.strategies.info import StrategyInfo


@dataclass(slots=True)
class RepeatLastParams(DraftParams):
    """How many tokens are repeated, and how many are drafted a round."""

    k: int = 4
    gamma: int = 4

    def problems(self, target: Target | None) -> list[Problem]:
        """Check k >= 1 and gamma >= 1."""
        return at_least("k", self.k, 1) + at_least("gamma", self.gamma, 1)


class RepeatLast(Strategy):
    """Draft the last k tokens over and over, at most γ a round."""

    info = StrategyInfo("repeat_last", "causal", "repetition", order=90)
    Params = RepeatLastParams

    def __init__(self, session: Session, params: DraftParams) -> None:
        """Bind to `session`; no state outlives a round but the count of right guesses."""
        super().__init__(session, params)
        self.params = cast(RepeatLastParams, params)
        self.right: Counter[int] = Counter()

    def propose(self, limit: int) -> Proposal:
        """Guess the same tokens again for every row; the pending token is the last of them."""
        length = min(self.params.gamma, limit)
        drafts = []
        for row in self.session.rows:
            last = row.tokens[-self.params.k :]
            drafts.append([last[place % len(last)] for place in range(length)])
        return Proposal(torch.tensor(drafts, dtype=torch.long, device=self.session.target.device))

    def observe(self, feedback: Feedback) -> None:
        """Count how many guesses of each round were right."""
        self.right.update(feedback.accepted)

    def report(self) -> dict[str, Any]:
        """Return how many rounds had how many right guesses."""
        return {"right": [[count, rounds] for count, rounds in sorted(self.right.items())]}

    @classmethod
    def tables(cls, row: Mapping[str, Any]) -> list[Table]:
        """Show the last call's rounds by their number of right guesses."""
        counted = row["extra"].get("drafter", {}).get("right", [])
        rows = tuple((count, rounds) for count, rounds in counted)
        return [Table("Right guesses", ("right guesses", "rounds"), rows, "Rounds of the last call.")]

    @classmethod
    def plots(cls, row: Mapping[str, Any]) -> list[Plot]:
        """Draw the same as bars."""
        counted = row["extra"].get("drafter", {}).get("right", [])
        if not counted:
            return []
        right, rounds = zip(*counted, strict=True)
        series = Series("rounds", tuple(map(float, right)), tuple(map(float, rounds)))
        return [Plot("Right guesses", "right guesses of a round", "rounds", (series,), kind="bar")]

"""Draft `skip_set+bayes`: the skip set of Draft & Verify's own search, Bayesian optimisation (arXiv 2309.08168)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from ssd_infer.engine.target import Target
from ssd_infer.errors import Problem
from ssd_infer.strategies.base import Auto, DraftParams, Resolved
from ssd_infer.strategies.skip_layers import SKIP_SET_BAYES
from ssd_infer.strategies.skip_layers.skip_calibration import SEARCH_SECONDS, resolve_skip_set
from ssd_infer.strategies.skip_layers.skip_params import SkipSetParams
from ssd_infer.strategies.skip_layers.skip_set import SkipSetDrafter


@dataclass(slots=True)
class SkipSetBayesParams(SkipSetParams):
    """Parameters of a skip set, and how long to search one."""

    search_seconds: float | Auto = "auto"
    """Longest search; a result saved beside the checkpoint needs none. Auto is a minute, in an evaluation its share."""

    def problems(self, target: Target | None) -> list[Problem]:
        """Check a skip set's rules and search_seconds > 0."""
        found = SkipSetParams.problems(self, target)
        if not isinstance(self.search_seconds, str) and not self.search_seconds > 0:
            found.append(Problem("draft_params.search_seconds", "must be > 0", self.search_seconds, "try 60"))
        return found


class SkipSetBayes(SkipSetDrafter):
    """Draft with the skip set that Bayesian optimisation finds in the time it is given."""

    info = SKIP_SET_BAYES
    Params = SkipSetBayesParams

    @classmethod
    def resolve(
        cls, target: Target, params: DraftParams, prompts: list[list[int]], do_sample: bool
    ) -> Resolved:
        """Take the saved set of this method or search one; plain decoding when no gain is predicted or measured."""
        given = cast(SkipSetBayesParams, params)
        longest = SEARCH_SECONDS if isinstance(given.search_seconds, str) else given.search_seconds
        return resolve_skip_set(cls, target, given, prompts, do_sample, "bayes", longest)

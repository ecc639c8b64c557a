"""What competes when parameters of a module are chosen, and what is known of each: costs, and acceptance along text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ssd_infer.engine.target import Target
from ssd_infer.models.draft_modules.module import DraftModule
from ssd_infer.strategies.draft_module.along_text import Drafted, cached_drafted, sampler_for
from ssd_infer.strategies.draft_module.module_costs import chain_costs
from ssd_infer.strategies.draft_module.module_heads import OWN, head_of, option_of, usual_option, with_option
from ssd_infer.strategies.draft_module.module_params import ModuleParams
from ssd_infer.strategies.draft_module.module_rounds import GAMMAS, THRESHOLDS, StepScores
from ssd_infer.tuning.costs import RoundCosts
from ssd_infer.tuning.draft_heads import FULL, HeadOption, head_options
from ssd_infer.tuning.head_study import HeadScores, head_seconds

if TYPE_CHECKING:
    from ssd_infer.strategies.draft_module.module_draft import ModuleDraft


@dataclass(slots=True)
class Choice:
    """One choice to make: what is given, and what is known of the module on this model."""

    kind: type[ModuleDraft]
    target: Target
    module: DraftModule
    params: ModuleParams
    prompts: list[list[int]]
    do_sample: bool

    @property
    def drafted(self) -> list[Drafted]:
        """What the module makes of the target's own text."""
        return cached_drafted(self.target, self.module, self.prompts, self.do_sample)

    @property
    def context(self) -> int:
        """Tokens that passes are measured after."""
        return max(map(len, self.prompts))

    @property
    def gammas(self) -> Iterable[int]:
        """Draft lengths that compete."""
        farthest = self.kind.farthest(self.target)
        if not isinstance(self.params.gamma, str):
            return (min(self.params.gamma, farthest),)
        return [gamma for gamma in GAMMAS if gamma <= farthest]

    @property
    def thresholds(self) -> Iterable[float]:
        """Confidence stops that compete; with a draft length given, `auto` means none."""
        if not isinstance(self.params.confidence, str):
            return (self.params.confidence,)
        return THRESHOLDS if isinstance(self.params.gamma, str) else (0.0,)

    def options(self) -> list[HeadOption]:
        """Return the heads that compete: the one the module was trained with, and where that is whole, parts of it."""
        wanted, usual = self.params.head, usual_option(self.module)
        if wanted == "auto":
            return [
                usual,
                *(head_options(self.target, "auto", self.params.head_size) if usual == FULL else []),
            ]
        if wanted in ("own", "full"):
            return [option_of(self.module, self.params, self.target)]
        return head_options(self.target, wanted, self.params.head_size)

    def costs(self, option: HeadOption) -> RoundCosts:
        """Return what rounds with a head cost: parts of the whole one save what was measured of them."""
        base = option if option in (OWN, FULL) else FULL
        shown = with_option(self.params, base)
        costs = chain_costs(self.kind, self.target, shown, self.context, self.do_sample)
        if option == base:
            return costs
        seconds = head_seconds(self.target, [option], self.prompts, self.do_sample)
        return costs.cheaper(seconds[FULL] - seconds[option])

    @torch.inference_mode()
    def first_scores(self, option: HeadOption) -> HeadScores:
        """Return what a head makes of the first drafts of rounds."""
        head = head_of(self.target, self.module, option, self.prompts)
        sampler = sampler_for(self.target, self.do_sample)
        return HeadScores.joined([one.scores(head, sampler, 0) for one in self.drafted])

    @torch.inference_mode()
    def step_scores(self, option: HeadOption) -> StepScores:
        """Return what a head makes of every draft of rounds."""
        head = head_of(self.target, self.module, option, self.prompts)
        sampler, steps = sampler_for(self.target, self.do_sample), range(len(self.drafted[0].steps))
        parts = [
            HeadScores.joined([one.scores(head, sampler, at) for one in self.drafted]).scores for at in steps
        ]
        found = [
            torch.stack([part.acceptance for part in parts]),
            torch.stack([part.confidence for part in parts]),
        ]
        return StepScores(found[0].float().cpu(), found[1].float().cpu())

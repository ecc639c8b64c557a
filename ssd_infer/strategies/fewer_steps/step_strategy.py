"""The strategy `fewer_steps` as evaluation and `generate` know it: which rows it has, what it studies of itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from ssd_infer.families.diffusion.settings import SamplerSettings
from ssd_infer.report.table import Plot
from ssd_infer.strategies.diffusion_strategy import Call, DiffusionStrategy, Draft
from ssd_infer.strategies.fewer_steps import FEWER_STEPS
from ssd_infer.strategies.fewer_steps.call_costs import predicted_speedup
from ssd_infer.strategies.fewer_steps.call_report import call_plots
from ssd_infer.strategies.fewer_steps.fewer_steps import resolve
from ssd_infer.strategies.fewer_steps.generate import generate
from ssd_infer.strategies.fewer_steps.step_calibration import Profile, cached_profile
from ssd_infer.strategies.info import row_name
from ssd_infer.strategies.run import GenerateOutput
from ssd_infer.strategies.study import Facts, Study, StudyContext


class FewerSteps(DiffusionStrategy):
    """Several future states are drafted and verified in one call."""

    info = FEWER_STEPS

    @classmethod
    def generate(cls, *arguments: Any, **named: Any) -> GenerateOutput:
        """Decode with this draft, or stepwise for `draft=None`; the arguments are those of `ssd_infer.generate`."""
        return generate(*arguments, **named)

    @classmethod
    def rows(cls, draft: str, given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Return the row asked for; for `all` the automatic choice, and every drafter by name."""
        if draft == "all":
            chosen = {f"{cls.info.row}:{name}": {"drafter": name} for name in cls.info.variants}
            return {cls.info.row: {}} | chosen
        row = row_name(draft)
        variant = row.partition(":")[2]
        return {row: {**({"drafter": variant} if variant else {}), **given}}

    @classmethod
    def resolve(
        cls, model: nn.Module, params: Mapping[str, Any], call: Call, prompts: Sequence[Sequence[int]]
    ) -> Draft:
        """Return the draft with every `auto` resolved on `prompts`; ConfigError for wrong parameters."""
        return resolve(
            model,
            cls.info.name,
            params,
            call.settings,
            call.sampling,
            prompts,
            call.max_new_tokens,
            call.batch,
        )

    @classmethod
    def studies(cls, context: StudyContext) -> list[Study]:
        """Return v(r) of calls like the timed ones, and how far chains were right on calibration prompts."""
        if context.params is None:
            return []
        return [Study("calls", _calls), Study("calibration", _acceptance)]

    @classmethod
    def shared_plots(cls, row: Mapping[str, Any]) -> list[Plot]:
        """Draw the measured curve of call costs: all drafts call the same model."""
        calls = row["extra"].get("calls")
        return call_plots(calls) if calls else []


def _calls(context: StudyContext) -> Facts:
    costs = _profile(context).costs
    return {"curve": costs.curve(), "batch": costs.batch}


def _acceptance(context: StudyContext) -> Facts:
    profile = _profile(context)
    chain = profile.acceptance(int((context.params or {}).get("gamma", 1)))
    return {
        "acceptance_by_depth": chain,
        "predicted_chain_speedup": predicted_speedup(chain, profile.costs),
    }


def _profile(context: StudyContext) -> Profile:
    """Return what stepwise decoding of calibration prompts showed; measured once for all rows of a setting."""
    settings = context.settings
    sampler = SamplerSettings.of(context.model.config)
    call = Call(sampler, context.sampling.params, settings.max_new_tokens, settings.batch_size)
    return cached_profile(context.model, call, context.calibration)

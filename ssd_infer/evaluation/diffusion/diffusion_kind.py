"""How a diffusion checkpoint is evaluated: stepwise decoding, every draft against it, and a lossy peer."""

from __future__ import annotations

from ssd_infer.config.evaluation import EvalSettings
from ssd_infer.evaluation.batch_exactness import batch_deadline
from ssd_infer.evaluation.bench import EvalContext, Say, open_context
from ssd_infer.evaluation.contenders import Contender
from ssd_infer.evaluation.diffusion.diffusion_contenders import (
    baseline,
    drafting,
    lossy_peer,
    resolved,
    strategy,
)
from ssd_infer.evaluation.diffusion.diffusion_figures import figures
from ssd_infer.evaluation.diffusion.diffusion_quality import generative_perplexity, quality
from ssd_infer.evaluation.diffusion.exactness import exact_in_batches
from ssd_infer.evaluation.kind import Row
from ssd_infer.evaluation.losslessness import LosslessResult, judge_greedy
from ssd_infer.evaluation.measure import prompts_by_row
from ssd_infer.evaluation.setting import Section, Setting, again
from ssd_infer.evaluation.strategies import Absent, Candidates, attempt, said_here
from ssd_infer.evaluation.stream import both
from ssd_infer.evaluation.studies import Asked, Round
from ssd_infer.evaluation.text_kind import TextKind
from ssd_infer.families.diffusion.denoiser import Denoiser
from ssd_infer.families.diffusion.settings import SamplerSettings
from ssd_infer.strategies.registry import basics

QUALITY_SHARE, PREPARING_SHARE, MEASURING = 0.15, 0.12, 0.97
"""Shares: of the time limit after which quality must be done, of what is left for one draft's calibration, and of the
limit after which everything is measured."""
UNRESOLVED = (
    "not measured: its calibration did not end in its share of the time limit; raise max_minutes, or ask for this "
    "draft alone"
)
OTHERS = (
    "it drafts for models that decode autoregressively, and this checkpoint is a diffusion language model"
)


class DiffusionKind(TextKind):
    """The sampler saved with the model decides how tokens are revealed; a draft must not change which."""

    def __init__(self, context: EvalContext) -> None:
        """Read the sampler's settings."""
        super().__init__(context)
        self.sampler = SamplerSettings.of(context.model.config)
        Denoiser.of(context.model)

    @classmethod
    def open(cls, settings: EvalSettings, say: Say) -> DiffusionKind:
        """Load the checkpoint and cut the prompts."""
        return cls(open_context(settings, say))

    def quality(self) -> Row:
        """Return the likelihood bound on held-out text."""
        self.context.say("bounding the likelihood of held-out text")
        return quality(self.context)

    def settings(self) -> list[Setting]:
        """Return one setting a temperature, with even shares of the time."""
        found, budget = [], self.context.budget
        temperatures = self.context.settings.temperatures
        for number, temperature in enumerate(temperatures):
            share = QUALITY_SHARE + (1 - QUALITY_SHARE) * (number + 1) / len(temperatures)
            deadline = budget.deadline(MEASURING * share)
            found.append(self.setting(number, temperature, deadline, deadline))
        return found

    def candidates(self, setting: Setting) -> Candidates:
        """Resolve the drafts asked for; stepwise decoding is the only baseline."""
        context, sampling = self.context, setting.sampling
        settings, found = context.settings, Candidates()
        others = [name for name in basics() if name != strategy().info.name]
        found.absent = [Absent(name + setting.suffix, "not_applicable", OTHERS) for name in others]
        context.say(f"calibrating drafts, {setting.said}")
        for row, params in strategy().rows(settings.draft, settings.draft_params).items():
            name = row + setting.suffix
            with attempt(found, context.model, name, setting.resolving.part(PREPARING_SHARE), UNRESOLVED):
                draft = resolved(context, params, sampling, self.sampler)
                found.contenders.append(drafting(context, name, draft, sampling, self.sampler))
                if draft.predicted_speedup is not None:
                    found.predicted[name] = draft.predicted_speedup
        plain = baseline(context, sampling, self.sampler)
        peers = [lossy_peer(context, sampling, self.sampler)] if settings.peers else []
        found.contenders = [plain, again(plain, setting.suffix), *found.contenders, *peers]
        found.absent = said_here(found.absent, sampling)
        return found

    def judge(self, section: Section) -> None:
        """Compare every output with stepwise decoding's, in batches too; then tell what decoding counted."""
        _judge(section)
        drafts = [item for item in section.contenders if item.kind == "strategy"]
        deadline = batch_deadline(self.context.budget)
        exact = exact_in_batches(self.context, drafts, section.sampling, self.sampler, deadline)
        section.verdicts |= {name: both(section.verdicts[name], result) for name, result in exact.items()}
        running = [item for item in drafts if item.failure is None and section.found.of(item.name)]
        for item in running:
            section.more.setdefault(item.name, {}).update(figures(section.found, item.name))
        self._study(section, running)
        self._add_perplexity(section)

    def _study(self, section: Section, running: list[Contender]) -> None:
        """Let the strategy tell what it knows of every row, those included that turned out plain."""
        deadline, info = section.setting.measuring, strategy().info
        studying = Round(self.context, "timed", section.sampling, deadline, deadline)
        section.learn(studying.run([Asked(item.name, info, item.params) for item in running]))

    def _add_perplexity(self, section: Section) -> None:
        """Add what the checkpoint thinks of its own outputs, once: lossless rows share them."""
        plain = next(item for item in section.contenders if item.kind == "baseline")
        prompts = prompts_by_row(self.context.units)
        outputs = section.found.outputs(plain.name)
        texts = [(prompts[key[1:]], tokens) for key, tokens in outputs.items() if key[0] == 0]
        found = generative_perplexity(self.context.model, texts)
        for name, more in section.more.items():
            if section.verdicts.get(name, LosslessResult("pass", "")).verdict == "pass":
                more["generative_perplexity"] = found


def _judge(section: Section) -> None:
    """Compare every output with stepwise decoding's: equal token by token, sampled ones under the same keyed noise."""
    reference = next(item for item in section.contenders if item.kind == "baseline")
    expected = {reference.name: section.found.outputs(reference.name)}
    for item in section.contenders:
        if item.kind in ("baseline", "again") or item.failure is not None:
            continue
        result = judge_greedy(section.found.outputs(item.name), expected)
        if not section.sampling.greedy:
            detail = result.detail.replace("greedy:", "sampling, same keyed noise:", 1)
            result = LosslessResult(result.verdict, detail, result.extra)
        section.verdicts[item.name] = result

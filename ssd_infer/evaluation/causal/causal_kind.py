"""How a causal checkpoint is evaluated: every strategy against our plain loop, transformers' generate and its peers."""

from __future__ import annotations

from ssd_infer.config.evaluation import EvalSettings
from ssd_infer.corpus import held_out_ids
from ssd_infer.engine.target import Target
from ssd_infer.evaluation.bench import EvalContext, Say, open_context, vocab_size
from ssd_infer.evaluation.causal.judging import judge
from ssd_infer.evaluation.causal.sweep import sweep
from ssd_infer.evaluation.contenders import Contender, ours
from ssd_infer.evaluation.kind import Row
from ssd_infer.evaluation.quality import exit_quality
from ssd_infer.evaluation.setting import Section, Setting, again
from ssd_infer.evaluation.strategies import Candidates, own_peers, select_candidates
from ssd_infer.evaluation.studies import Findings, Round, listed_rows
from ssd_infer.evaluation.text_kind import TextKind
from ssd_infer.evaluation.transformers_side import hf_baseline, hf_peers
from ssd_infer.evaluation.vocabulary import check_ids
from ssd_infer.strategies import registry as strategies
from ssd_infer.strategies.study import Sampling, When
from ssd_infer.tuning.budget import Deadline, deal

QUALITY_TOKENS, QUALITY_WINDOW = 8192, 256
CALIBRATION_SHARE = 0.6
"""Share of the time up to the end of the first choice of parameters that calibrations at the start may take."""
OWN_CONTEXTS = 0.5
"""Share of the time for contexts that strategies' own studies there may take; the sweep has the rest."""
LONGEST_SEARCH, SEARCH_SHARE = 60.0, 0.05
"""Seconds of one strategy's search, and the share of the time limit it may take."""


class CausalKind(TextKind):
    """Each phase is done by its moment, lest the first spend the whole limit."""

    def __init__(self, context: EvalContext) -> None:
        """Share the time limit between the phases."""
        super().__init__(context)
        settings = context.settings
        ends = deal([not t for t in settings.temperatures], bool(settings.contexts), bool(context.shift))
        self.moments = {phase: context.budget.deadline(share) for phase, share in ends.items()}

    @classmethod
    def open(cls, settings: EvalSettings, say: Say) -> CausalKind:
        """Load the checkpoint and cut the prompts."""
        return cls(open_context(settings, say))

    @property
    def refusal(self) -> str | None:
        """Return why the engine has no view of the model."""
        return None if isinstance(self.context.target, Target) else self.context.target

    def quality(self) -> Row:
        """Return loss and agreement of every exit on held-out text."""
        context = self.context
        if not isinstance(context.target, Target):
            return {"exits": [], "reason": context.target}
        context.say("measuring loss and agreement of every exit")
        source, windows = held_out_ids(context.tasks, context.tokenizer, QUALITY_TOKENS, QUALITY_WINDOW)
        check_ids(source, windows, vocab_size(context.model))
        return exit_quality(context.target, windows, source, self.moments["quality"])

    def study(self) -> list[Findings]:
        """Let strategies study themselves, then at long contexts if asked for, where all are swept as well."""
        found = [self._studied("start", self.moments["start"])]
        if self.context.settings.contexts:
            moment = self.moments["contexts"]
            found.append(self._studied("contexts", moment.part(OWN_CONTEXTS)))
            found.append(sweep(self.context, moment, search_seconds(self.context.settings)))
        return found

    def _studied(self, when: When, deadline: Deadline) -> Findings:
        calibrated = self.moments["prepare 0"].part(CALIBRATION_SHARE)
        return Round(self.context, when, Sampling(), deadline, calibrated).run(
            listed_rows(self.context, Sampling())
        )

    def settings(self) -> list[Setting]:
        """Return one setting a temperature."""
        return [
            self.setting(
                number, temperature, self.moments[f"prepare {number}"], self.moments[f"measure {number}"]
            )
            for number, temperature in enumerate(self.context.settings.temperatures)
        ]

    def candidates(self, setting: Setting) -> Candidates:
        """Resolve every strategy, searching where one needs it; plain decodings come first, peers last."""
        context, settings, sampling = self.context, self.context.settings, setting.sampling
        context.say("choosing parameters, searching where a strategy needs it")
        found = select_candidates(
            context.model,
            context.target,
            settings.draft,
            settings.draft_params,
            sampling,
            context.calibration,
            search_seconds(settings),
            settings.batch_size,
            setting.resolving,
        )
        peers = _peers(context, sampling, found) if settings.peers else []
        found.contenders = [*_baselines(context, sampling), *found.contenders, *peers]
        return found

    def studies(self, setting: Setting) -> Round:
        """Return the round in which strategies study what was timed."""
        return Round(self.context, "timed", setting.sampling, setting.measuring, setting.resolving)

    def judge(self, section: Section) -> None:
        """Test outputs and laws; decode the streams of task_shift where they were asked for."""
        number = section.setting.number
        judge(self.context, section, self.moments[f"law {number}"])
        if self.context.shift:
            self.context.say("decoding streams whose text changes")
            deadline = self.moments[f"streams {number}"]
            studying = Round(self.context, "streams", section.sampling, deadline, deadline)
            section.learn(studying.run(listed_rows(self.context, section.sampling)))


def search_seconds(settings: EvalSettings) -> float:
    """Return how long one strategy may search before it is timed."""
    if settings.search_seconds or not settings.max_minutes:
        return settings.search_seconds or LONGEST_SEARCH
    return min(LONGEST_SEARCH, SEARCH_SHARE * 60 * settings.max_minutes)


def _baselines(context: EvalContext, sampling: Sampling) -> list[Contender]:
    plain = Contender(f"ssd_plain{sampling.suffix}", "baseline", ours(context.model, None, {}, sampling))
    if isinstance(context.target, str):
        plain.failure = context.target
    theirs = hf_baseline(context.model, sampling)
    return [plain, theirs, again(theirs if plain.failure else plain, sampling.suffix)]


def _peers(context: EvalContext, sampling: Sampling, found: Candidates) -> list[Contender]:
    exits = [item for item in found.contenders if _leaves_early(item)]
    chosen = [item.params["exit_layer"] for item in exits if "exit_layer" in item.params]
    peers = hf_peers(context.model, sampling, int(chosen[0]) if chosen else _usual_exit(context))
    if exits and not chosen:
        for item in peers:
            if "assistant_early_exit" in item.params:
                item.failure = "not timed: no early exit of this model is predicted to gain"
    if not isinstance(context.target, Target):
        return peers
    return peers + own_peers(context.model, context.target, sampling, context.settings.draft)


def _leaves_early(item: Contender) -> bool:
    """Tell whether a strategy chooses an exit; one that decodes plainly chose none."""
    return item.draft is not None and "exit_layer" in strategies.get(item.draft).Params.__dataclass_fields__


def _usual_exit(context: EvalContext) -> int:
    if isinstance(context.target, Target):
        layers = context.target.num_layers
    else:
        layers = int(getattr(context.model.config, "num_hidden_layers", 4))
    return max(1, layers // 4)

"""One part of an evaluation: everything decoded at one temperature, timed together and judged."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ssd_infer.config.evaluation import EvalSettings
from ssd_infer.engine.target import Target
from ssd_infer.evaluation.batch_exactness import batch_deadline
from ssd_infer.evaluation.batch_text import greedy_in_batches, sampled_in_batches
from ssd_infer.evaluation.bench import EvalContext
from ssd_infer.evaluation.contenders import Contender, one_line, ours
from ssd_infer.evaluation.distribution import SETTINGS, judge_sampling, pick_context
from ssd_infer.evaluation.losslessness import LosslessResult, Regret, judge_greedy
from ssd_infer.evaluation.measure import Measurements, measure
from ssd_infer.evaluation.strategies import Absent, Candidates, own_peers, select_candidates
from ssd_infer.evaluation.stream import Output, both, judge_stream
from ssd_infer.evaluation.studies import Findings, Round, timed_rows
from ssd_infer.evaluation.summary import (
    AGAIN,
    Scoreboard,
    absent_row,
    baseline_row,
    peer_row,
    scoreboard,
    share_plain,
    strategy_row,
)
from ssd_infer.evaluation.transformers_side import eos_ids, hf_baseline, hf_peers
from ssd_infer.strategies.study import Sampling
from ssd_infer.tuning.budget import Deadline, OutOfTime, stopping

LONGEST_SEARCH, SEARCH_SHARE = 60.0, 0.05
"""Seconds of one strategy's search, and the share of the time limit it may take."""
STUDIED = 0.15
"""Share of a setting's measuring time that studies of the timed rows take, where there are any."""


@dataclass(slots=True)
class Section:
    """What one sampling setting produced."""

    sampling: Sampling
    contenders: list[Contender]
    absent: list[Absent]
    found: Measurements
    board: Scoreboard | None
    verdicts: dict[str, LosslessResult] = field(default_factory=dict)
    more: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Additions to a strategy row's `extra`, by name."""
    faults: dict[str, str] = field(default_factory=dict)
    """How a strategy's output broke its promise in a study, by name."""

    def learn(self, findings: Findings) -> None:
        """Take what studies found of rows of this setting."""
        for name, facts in findings.facts.items():
            self.more.setdefault(name, {}).update(facts)
        self.faults |= findings.faults


def run_section(bench: EvalContext, sampling: Sampling, resolving: Deadline, deadline: Deadline) -> Section:
    """Choose all contenders at one sampling setting, done by `resolving`, and time them until `deadline`."""
    settings = bench.settings
    bench.say("choosing parameters, searching where a strategy needs it")
    field_ = select_candidates(
        bench.model,
        bench.target,
        settings.draft,
        settings.draft_params,
        sampling,
        bench.calibration,
        search_seconds(settings),
        settings.batch_size,
        resolving,
    )
    peers = _peers(bench, sampling, field_) if settings.peers else []
    contenders = [*_baselines(bench, sampling), *field_.contenders, *peers]
    stand_in(contenders)
    how = "greedy" if sampling.greedy else f"temperature {sampling.temperature:g}"
    running = sum(item.stands_for is None for item in contenders)
    bench.say(f"decoding with {running} contenders, {how}")
    studying = Round(bench, "timed", sampling, deadline, resolving)
    found = measure(
        contenders,
        bench.units,
        settings.repeats,
        settings.max_new_tokens,
        settings.seed,
        bench.device,
        deadline.part(1 - STUDIED) if studying.studies(timed_rows(contenders)) else deadline,
    )
    bench.notes += [*shortfalls(found, settings.max_new_tokens, how), *_broken_baselines(bench, contenders)]
    share_plain(found, contenders)
    studied = replace(studying, new_tokens=found.new_tokens).run(timed_rows(contenders))
    section = Section(
        sampling, contenders, field_.absent, found, scoreboard(found, contenders, sampling, settings.seed)
    )
    section.more = {name: {"predicted_by_calibration": value} for name, value in field_.predicted.items()}
    for name, facts in field_.searches.items():
        section.more.setdefault(name, {})["search"] = facts
    section.learn(studied)
    return section


def _broken_baselines(bench: EvalContext, contenders: list[Contender]) -> list[str]:
    """Say why plain decoding failed, by whom; of a model refused by name the rows say it already."""
    failed = [item for item in contenders if item.kind == "baseline" and item.failure is not None]
    return [f"{item.name} failed: {item.failure}" for item in failed if item.failure != bench.target]


def stand_in(contenders: list[Contender]) -> None:
    """Let every strategy that decodes plainly stand for the first baseline that can run: it is the same decoding."""
    plain = next((item for item in contenders if item.kind == "baseline" and item.failure is None), None)
    for item in contenders:
        if item.kind == "strategy" and item.plain and plain is not None:
            item.stands_for = plain.name


def search_seconds(settings: EvalSettings) -> float:
    """Return how long one strategy may search before it is timed."""
    if settings.search_seconds or not settings.max_minutes:
        return settings.search_seconds or LONGEST_SEARCH
    return min(LONGEST_SEARCH, SEARCH_SHARE * 60 * settings.max_minutes)


def shortfalls(found: Measurements, wanted: int, how: str) -> list[str]:
    """Say what the time limit left out."""
    notes = []
    if found.new_tokens < wanted:
        notes.append(
            f"the time limit allowed {found.new_tokens} of {wanted} tokens a prompt ({how}); speeds are of {wanted}, "
            "the rest at the steady rate of those decoded"
        )
    if found.rounds_done < found.rounds_planned:
        notes.append(
            f"the time limit ended the runs after {found.rounds_done} of {found.rounds_planned} rounds ({how})"
        )
    return notes


def judge(bench: EvalContext, section: Section, deadline: Deadline) -> None:
    """Fill the section's verdicts: token equality when greedy, a distribution test when sampling."""
    if section.board is None:
        return
    if section.sampling.greedy:
        _judge_greedy(bench, section)
    else:
        _judge_sampling(bench, section, deadline)
    _judge_batches(bench, section)


def rows(section: Section) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the section's baseline, peer and strategy rows."""
    missing = LosslessResult("not_run", "no test was made at this setting")
    baselines = [
        baseline_row(item, section.board) for item in section.contenders if item.kind in ("baseline", "again")
    ]
    peers = [
        peer_row(item, section.board, section.verdicts.get(item.name, missing))
        for item in section.contenders
        if item.kind == "peer"
    ]
    strategies = []
    for item in section.contenders:
        if item.kind != "strategy":
            continue
        if item.failure is not None or section.board is None or not section.found.of(item.name):
            reason = item.failure or "no plain decoding ran"
            strategies.append(absent_row(Absent(item.name, "failed", reason), item.claimed))
        else:
            verdict = section.verdicts.get(item.name, missing)
            strategies.append(strategy_row(item, section.board, verdict, section.more.get(item.name, {})))
    studied = Findings(faults=section.faults)
    for row in strategies:
        studied.attach(row)
    return baselines, peers, strategies + [absent_row(item) for item in section.absent]


def _baselines(bench: EvalContext, sampling: Sampling) -> list[Contender]:
    plain = Contender(f"ssd_plain{sampling.suffix}", "baseline", ours(bench.model, None, {}, sampling))
    if isinstance(bench.target, str):
        plain.failure = bench.target
    theirs = hf_baseline(bench.model, sampling)
    return [plain, theirs, again(theirs if plain.failure else plain, sampling)]


def again(baseline: Contender, sampling: Sampling) -> Contender:
    """Return `baseline` a second time: how far the two seem apart is the noise of the report."""
    name = baseline.name.removesuffix(sampling.suffix) + AGAIN + sampling.suffix
    return Contender(name, "again", baseline.decode, listener=baseline.listener)


def _peers(bench: EvalContext, sampling: Sampling, field_: Candidates) -> list[Contender]:
    early = next(
        (item.params["exit_layer"] for item in field_.contenders if "exit_layer" in item.params), None
    )
    layers = (
        bench.target.num_layers
        if isinstance(bench.target, Target)
        else int(getattr(bench.model.config, "num_hidden_layers", 4))
    )
    peers = hf_peers(bench.model, sampling, int(early or max(1, layers // 4)))
    return peers + (
        own_peers(bench.model, sampling, bench.settings.draft) if isinstance(bench.target, Target) else []
    )


def _judge_greedy(bench: EvalContext, section: Section) -> None:
    found = section.found
    names = [item.name for item in section.contenders if item.kind == "baseline" and item.failure is None]
    references = {name: found.outputs(name) for name in names}
    prompts = {(unit.index, row): prompt for unit in bench.units for row, prompt in enumerate(unit.prompts)}
    gate = Regret(bench.model, prompts, found.new_tokens, frozenset(eos_ids(bench.model)))
    strict = torch.finfo(bench.dtype).bits >= 32
    for item in section.contenders:
        if item.kind not in ("baseline", "again") and item.failure is None:
            section.verdicts[item.name] = judge_greedy(found.outputs(item.name), references, gate, strict)


def _judge_sampling(bench: EvalContext, section: Section, deadline: Deadline) -> None:
    """Test the law of what drafted: first the timed tokens of every row, then short continuations while time is left.

    A row that never drafted is plain decoding, whose own tokens are tested once for all such rows.
    """
    judged = [item for item in section.contenders if item.kind == "strategy" and item.failure is None]
    drafting = [item for item in judged if not item.plain]
    if not judged:
        return
    bench.say("testing the sampled distributions")
    streams = {item.name: _stream(bench, section, item) for item in drafting}
    for item in judged:
        if item.plain:
            shared = section.found.shared.get(item.name, item.name)
            if shared not in streams:
                streams[shared] = _stream(bench, section, item)
            section.verdicts[item.name] = _as_plain(streams[shared], item)
    context: list[int] = []
    for place, item in enumerate(drafting):
        drawn = _drawn(bench, item, context, deadline.part(1 / (len(drafting) - place)))
        section.verdicts[item.name] = both(drawn, streams[item.name])


def _as_plain(stream: LosslessResult, item: Contender) -> LosslessResult:
    """Return the verdict of a row that is plain decoding: it passes by what it is, unless its tokens say otherwise."""
    if stream.verdict != "not_run":
        return stream
    why = "drafted nothing" if item.idle else "is plain decoding"
    detail = f"sampling: it {why}, so that nothing could change; {stream.detail.removeprefix('sampling: ')}"
    return LosslessResult("pass", detail, stream.extra)


def _stream(bench: EvalContext, section: Section, item: Contender) -> LosslessResult:
    """Test the places of a row's timed tokens: a pass an output, a small part of what timing them took."""
    drafted = section.found.counted(item.name).total.drafted
    outputs, seed = _outputs(bench, section, item), bench.settings.seed
    try:
        return judge_stream(bench.model, outputs, section.sampling, drafted, seed, item.plain)
    except Exception as error:  # noqa: BLE001  the row fails, the report goes on
        return LosslessResult("fail", f"sampling: the test itself failed ({one_line(error)})")


def _drawn(bench: EvalContext, item: Contender, context: list[int], deadline: Deadline) -> LosslessResult:
    """Test short continuations of a row's strategy against exact enumeration; not run where the time ends before.

    `context` is what they continue, chosen at the first call.
    """
    decodes = [(how, ours(bench.model, item.draft, item.params, how, eos=[])) for how in SETTINGS]
    try:
        with stopping(bench.model, deadline):
            if not context:
                context += pick_context(bench.model, [row for unit in bench.units for row in unit.prompts])
            return judge_sampling(bench.model, decodes, context, deadline, bench.settings.seed)
    except OutOfTime:
        return LosslessResult("not_run", "sampling: no time was left for exact enumeration")
    except Exception as error:  # noqa: BLE001  the row fails, the report goes on
        return LosslessResult("fail", f"sampling: the test itself failed ({one_line(error)})")


def _outputs(bench: EvalContext, section: Section, item: Contender) -> list[Output]:
    """Pair every timed output of a contender with its prompt."""
    prompts = {(unit.index, row): prompt for unit in bench.units for row, prompt in enumerate(unit.prompts)}
    return [Output(prompts[key[1:]], tokens) for key, tokens in section.found.outputs(item.name).items()]


def _judge_batches(bench: EvalContext, section: Section) -> None:
    """Add to every verdict what short decodings at batch 1 and in a ragged batch, at several budgets, say."""
    prompts = [prompt for unit in bench.units for prompt in unit.prompts]
    most, deadline = bench.settings.max_new_tokens, batch_deadline(bench.budget)
    bench.say("testing ragged batches and budgets")
    if section.sampling.greedy:
        more = greedy_in_batches(bench.model, section.contenders, prompts, most, deadline)
    else:
        drafted = {
            item.name: section.found.counted(item.name).total.drafted
            for item in section.contenders
            if item.kind == "strategy" and item.failure is None and not item.plain
        }
        judged = [item for item in section.contenders if drafted.get(item.name)]
        more = sampled_in_batches(bench, judged, section.sampling, prompts, deadline)
    for name, result in more.items():
        known = section.verdicts.get(name)
        section.verdicts[name] = result if known is None else both(known, result)

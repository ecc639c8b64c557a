"""Test what strategies of a causal checkpoint emitted: tokens when greedy, the law when sampling, both in batches."""

from __future__ import annotations

import torch

from ssd_infer.evaluation.batch_exactness import batch_deadline
from ssd_infer.evaluation.batch_text import greedy_in_batches, sampled_in_batches
from ssd_infer.evaluation.bench import EvalContext
from ssd_infer.evaluation.contenders import Contender, one_line, ours
from ssd_infer.evaluation.distribution import SETTINGS, judge_sampling, pick_context
from ssd_infer.evaluation.losslessness import LosslessResult, Regret, judge_greedy
from ssd_infer.evaluation.measure import prompts_by_row
from ssd_infer.evaluation.setting import Section
from ssd_infer.evaluation.stream import Output, both, judge_stream
from ssd_infer.evaluation.transformers_side import eos_ids
from ssd_infer.tuning.budget import Deadline, OutOfTime, stopping


def judge(bench: EvalContext, section: Section, deadline: Deadline) -> None:
    """Fill the section's verdicts: token equality when greedy, a distribution test when sampling."""
    if section.board is None:
        return
    if section.sampling.greedy:
        _judge_greedy(bench, section)
    else:
        _judge_sampling(bench, section, deadline)
    _judge_batches(bench, section)


def _judge_greedy(bench: EvalContext, section: Section) -> None:
    found = section.found
    names = [item.name for item in section.contenders if item.kind == "baseline" and item.failure is None]
    references = {name: found.outputs(name) for name in names}
    prompts = prompts_by_row(bench.units)
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
    prompts = prompts_by_row(bench.units)
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

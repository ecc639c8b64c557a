"""Causal models: any draft, any parameters, ragged batches, every way to end; the output must be the greedy text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

import ssd_infer
from ssd_infer.engine.sampling import Sampler, SamplingParams
from ssd_infer.engine.stats import RowStats, Stats
from ssd_infer.engine.turns import decode_turns
from ssd_infer.errors import SSDError
from ssd_infer.strategies import registry as drafts
from ssd_infer.strategies.base import Drafter
from tests.fuzz.campaign import Arm
from tests.fuzz.models import LONGEST, Built, Rules, Spec, built, families_for, pool, prompt_of
from tests.fuzz.parameters import parameters
from tests.fuzz.parameters import rules as rules_of
from tests.fuzz.tally import Tally

__all__ = ["Case", "Spec", "show"]
ENDS: tuple[tuple[str, ...], ...] = ((), ("eos",), (), ("stop",), ("eos", "stop"))
"""What may end a row before its budget does."""
BATCHES = (2, 1, 2, 3, 3, 4, 5, 6)
FORMS = ("tensors", "lists", "left", "right", "hf", "turns")
"""Rows as tensors or lists, a table padded left or right with its mask, transformers' `generate`, a stream of turns."""


@dataclass(frozen=True, slots=True)
class Case:
    """One call."""

    model: Spec
    draft: str | None
    params: dict[str, Any]
    prompts: tuple[int, ...]
    """Numbers of prompts (`models.prompt_of`), one a row."""
    budget: int
    eos: tuple[int, ...] = ()
    stops: tuple[tuple[int, ...], ...] = ()
    form: str = "tensors"
    sampled: bool = False
    """Sample from a law that top-k leaves one token: as deterministic as greedy, by the other acceptance rule."""
    rules: Rules = ()
    """Rules of generation the call names."""


@dataclass(slots=True)
class Found:
    """What a call gave, and how its statistics read."""

    sequences: list[list[int]]
    stats: Stats | None = None
    streamed: dict[int, list[int]] = field(default_factory=dict)


@st.composite
def cases(draw: DrawFn, name: str | None, variants: range, open_ended: bool = False) -> Case:
    """Draw a call of strategy `name` (None: plain decoding) on a model of `variants` that it applies to.

    `open_ended` leaves out some parameters, or all, so that the strategy has to settle them.
    """
    strategy = None if name is None else drafts.get(name)
    model = draw(st.sampled_from(families_for(strategy, variants)))
    params = {} if strategy is None else draw(parameters(strategy.Params, built(model).scope))
    built(model).prepare([prompt_of(row) for row in pool(model)])
    if open_ended:
        given = draw(st.sets(st.sampled_from(sorted(params)))) | {"search_seconds"}
        params = {key: value for key, value in params.items() if key in given}
    count = draw(st.sampled_from(BATCHES))
    rows = tuple(draw(st.sampled_from(pool(model))) for _ in range(count))
    reach = sum(params.get(key, 4) for key in ("gamma", "copy") if isinstance(params.get(key, 4), int))
    budget = draw(st.integers(1, min(LONGEST, 2 * reach + 3)))
    eos, stops = draw(_ends(built(model), rows, budget))
    form = draw(st.sampled_from(FORMS))
    form = "tensors" if form in ("hf", "turns") and draw(st.booleans()) else form  # these two are slow
    if form == "turns":
        rows, eos, stops, budget = rows[:2], (), (), min(budget, LONGEST)
    if form == "hf" and (name is None or stops):
        form = "left"
    sampled = draw(st.booleans()) and draw(st.booleans())
    rules = () if form in ("hf", "turns") else draw(rules_of(model.vocabulary))
    if not eos:
        rules = tuple(rule for rule in rules if rule[0] != "exponential_decay_length_penalty")
    return Case(model, name, params, rows, budget, eos, stops, form, sampled, rules)


@st.composite
def _ends(
    draw: DrawFn, model: Built, rows: Sequence[int], budget: int
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Draw ids and sequences that end rows, of those that really occur in what the rows decode to."""
    texts = [model.reference(prompt_of(row)).text[:budget] for row in rows]
    place = st.tuples(st.integers(0, len(texts) - 1), st.integers(0, budget - 1))
    kinds = draw(st.sampled_from(ENDS))
    eos, stops = [], []
    if "eos" in kinds:
        eos = [texts[row][at] for row, at in draw(st.lists(place, min_size=1, max_size=2))]
    if "stop" in kinds:
        for row, at in draw(st.lists(place, min_size=1, max_size=2)):
            stops.append(texts[row][at : at + draw(st.integers(1, 3))])
    return tuple(dict.fromkeys(eos)), tuple(stops)


def expected(
    text: Sequence[int], budget: int, eos: Sequence[int], stops: Sequence[Sequence[int]]
) -> list[int]:
    """Return the part of a greedy text that is emitted: to the first end of it, that end included."""
    for end in range(1, min(budget, len(text)) + 1):
        head = list(text[:end])
        if head[-1] in eos or any(head[-len(stop) :] == list(stop) for stop in stops):
            return head
    return list(text[:budget])


def check(case: Case, tally: Tally) -> None:
    """Decode one case and compare it with the greedy text; count what it did."""
    model = built(case.model)
    wanted = _turned(model, case) if case.form == "turns" else _wanted(model, case)
    if wanted is None:
        tally.ties += 1
        return
    strategy = None if case.draft is None else drafts.get(case.draft)
    try:
        promised = strategy is None or strategy.claims(strategy.parse(case.params, model.target))
        found = _DECODE.get(case.form, _generate)(model, case, strategy)
    except SSDError as refusal:
        tally.refuse(refusal)
        return
    _count(tally, found, case)
    if promised:
        assert found.sequences == wanted, difference(found.sequences, wanted)
    _consistent(found, case)


def difference(found: Sequence[Sequence[int]], wanted: Sequence[Sequence[int]]) -> str:
    """Say which rows differ and where."""
    lines = [
        f"row {row}: decoded {list(got)}, greedy {list(text)}"
        for row, (got, text) in enumerate(zip(found, wanted, strict=True))
        if list(got) != list(text)
    ]
    return "\n".join(lines)


def _wanted(model: Built, case: Case) -> list[list[int]] | None:
    """Return the greedy text of every row, None where one of them hangs on a tie."""
    prompts = [prompt_of(row) for row in case.prompts]
    if case.rules:
        references = model.references_under(prompts, case.rules, case.eos, case.budget)
    else:
        references = [model.reference(prompt) for prompt in prompts]
    if any(reference.tied for reference in references):
        return None
    return [expected(reference.text, case.budget, case.eos, case.stops) for reference in references]


def _turned(model: Built, case: Case) -> list[list[int]] | None:
    """Return the greedy stream of a conversation: each prompt of the case is a turn, answered with `budget` tokens."""
    stream: list[int] = []
    for row in case.prompts:
        stream += prompt_of(row)
        reference = model.reference(tuple(stream))
        if reference.tied:
            return None
        stream += reference.text[: case.budget]
    return [stream[len(prompt_of(case.prompts[0])) :]]


def _sampling(case: Case) -> dict[str, Any]:
    return {"do_sample": True, "top_k": 1} if case.sampled else {}


def _table(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the prompts as one table and its mask, padded on the side the form says."""
    rows = [prompt_of(row) for row in case.prompts]
    width = max(map(len, rows))
    ids, mask = torch.full((len(rows), width), 1), torch.zeros((len(rows), width), dtype=torch.long)
    for at, row in enumerate(rows):
        place = slice(0, len(row)) if case.form == "right" else slice(width - len(row), width)
        ids[at, place], mask[at, place] = torch.tensor(row), 1
    return ids, mask


def _generate(model: Built, case: Case, strategy: type[Drafter] | None) -> Found:
    """Decode by `ssd_infer.generate`."""
    given: dict[str, Any] = {"input_ids": [list(prompt_of(row)) for row in case.prompts]}
    if case.form == "tensors":
        given["input_ids"] = [torch.tensor(row) for row in given["input_ids"]]
    if case.form in ("left", "right"):
        given["input_ids"], given["attention_mask"] = _table(case)
    found = Found([])
    out = ssd_infer.generate(
        model.model,
        **given,
        draft=case.draft,
        draft_params=case.params if case.draft else None,
        max_new_tokens=case.budget,
        eos_token_id=list(case.eos),
        stop_sequences=case.stops,
        seed=0,
        streamer=lambda row, tokens: found.streamed.setdefault(row, []).extend(tokens),
        **_sampling(case),
        **dict(case.rules),
    )
    found.sequences, found.stats = out.sequences, out.stats
    return found


def _by_transformers(model: Built, case: Case, strategy: type[Drafter] | None) -> Found:
    """Decode by `model.generate` with our function in it, and cut off its padding."""
    ids, mask = _table(case)
    out = model.model.generate(
        ids,
        attention_mask=mask,
        custom_generate=ssd_infer.hf_generate,
        draft=case.draft,
        draft_params=case.params,
        seed=0,
        max_new_tokens=case.budget,
        eos_token_id=list(case.eos) or None,
        pad_token_id=0,
        **({"do_sample": False} | _sampling(case)),
    )
    assert torch.equal(out[:, : ids.shape[1]], ids)
    rows = out[:, ids.shape[1] :].tolist()
    cut = [expected(row, len(row), case.eos, ()) for row in rows]
    assert all(set(row[len(text) :]) <= {0} for row, text in zip(rows, cut, strict=True)), (
        "padding after the end"
    )
    return Found(cut)


def _by_turns(model: Built, case: Case, strategy: type[Drafter] | None) -> Found:
    """Decode a stream that goes on after every prompt of the case."""
    turns = [list(prompt_of(row)) for row in case.prompts]
    resolved = (
        None if strategy is None else strategy.prepare(model.target, case.params, turns[:1], case.sampled)
    )
    params = None if resolved is None else resolved.params
    sampler = Sampler(SamplingParams(**_sampling(case)), torch.device("cpu"), 0)
    tokens, stats = decode_turns(model.target, turns, strategy, params, case.budget, sampler)
    return Found([tokens], stats)


_DECODE = {"hf": _by_transformers, "turns": _by_turns}


def _count(tally: Tally, found: Found, case: Case) -> None:
    tally.decodings += 1
    tally.rows += len(found.sequences)
    tally.tokens += sum(map(len, found.sequences))
    if found.stats is None:
        return
    total = found.stats.total
    tally.could += any(len(text) > 2 for text in found.sequences)
    tally.drafted += total.drafted > 0
    tally.rounds += total.rounds if total.drafted else 0
    tally.accepted += total.accepted


def _consistent(found: Found, case: Case) -> None:
    """Check what holds for any draft, also one that may change the output."""
    for text in found.sequences:
        most = case.budget * (len(case.prompts) if case.form == "turns" else 1)
        assert len(text) <= most or case.form == "turns"
        if case.form != "turns":
            assert text == expected(text, len(text), case.eos, case.stops), (
                "nothing may follow the end of a row"
            )
    if found.stats is None or case.form == "turns":
        return
    assert [found.streamed.get(row, []) for row in range(len(found.sequences))] == found.sequences
    for row, text in zip(found.stats.rows, found.sequences, strict=True):
        _consistent_row(row, len(text))


def _consistent_row(row: RowStats, length: int) -> None:
    """Check that a row's counters add up: a verify pass emits what it accepted and one more, unless the row ended."""
    assert row.emitted == length
    assert 0 <= row.accepted <= row.drafted
    assert sum(row.histogram) == row.rounds == len(row.trace)
    assert row.accepted + row.rounds + 1 in (length, length + 1)


def show(case: Case) -> None:
    """Check one case by itself and say that it passed."""
    check(case, Tally())
    print("no difference")


def arm(name: str | None) -> Arm:
    """Return the arm of a strategy, or of plain decoding."""
    judged = name is not None

    def drawn(variants: range) -> SearchStrategy[Case]:
        return cases(name, variants)

    return Arm(name or "plain", drawn, check, judged=judged)


def auto_arm(name: str) -> Arm:
    """Return the arm of a strategy that settles parameters by itself; it may settle for plain decoding."""

    def drawn(variants: range) -> SearchStrategy[Case]:
        return cases(name, variants, open_ended=True)

    return Arm(f"auto {name}", drawn, check, share=0.01, judged=False)


def auto_arms() -> list[Arm]:
    """Return an arm that calibrates, searches and races, which takes seconds a case, for every registered strategy."""
    return [auto_arm(name) for name in drafts.registry()]


def arms() -> list[Arm]:
    """Return an arm for every strategy that is registered now, and one for plain decoding."""
    return [arm(None), *(arm(name) for name in drafts.registry())]

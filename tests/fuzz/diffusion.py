"""Masked-diffusion models: every drafter of `fewer_steps`, any sampler; the output must be stepwise decoding's."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

import ssd_infer
from ssd_infer.errors import SSDError
from ssd_infer.strategies.fewer_steps.drafts import DRAFTERS
from tests.families.diffusion.support import BIDIRECTIONAL, BLOCK_CAUSAL, build
from tests.families.diffusion.support import prompts as random_prompts
from tests.fuzz.campaign import Arm
from tests.fuzz.causal import difference
from tests.fuzz.tally import Tally

__all__ = ["Case", "Spec", "show"]
FAMILIES = ("llama", "qwen3", "mistral")
OPTIONS: dict[str, SearchStrategy[Any]] = {
    "width": st.integers(2, 4),
    "draft_steps": st.integers(2, 6),
    "graph": st.lists(
        st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1)).map(list), min_size=1, max_size=3),
        max_size=6,
    ),
}
"""Values of what a drafter's constructor takes beside γ; parameters of another name keep their defaults."""


@dataclass(frozen=True, slots=True)
class Spec:
    """A model: `block` 0 sees the whole canvas, otherwise it was trained in blocks of that many tokens."""

    seed: int = 0
    block: int = 4
    family: str = "llama"
    shift: bool = False


@dataclass(frozen=True, slots=True)
class Case:
    """One call; the prompts are random ones of these lengths."""

    model: Spec
    params: dict[str, Any]
    lengths: tuple[int, ...]
    tokens: int
    sampler: dict[str, Any]
    temperature: float = 0.0
    eos: tuple[int, ...] = ()
    table: bool = False
    """Give the prompts as one left-padded table and its mask."""
    seed: int = 0


@functools.lru_cache(maxsize=96)
def model_of(spec: Spec) -> Any:
    """Build the model of a spec, in float64: calls of different width round differently, and a tie is no fault."""
    objective = BLOCK_CAUSAL if spec.block else BIDIRECTIONAL
    return build(spec.seed, objective, spec.block, family=spec.family, logit_shift=spec.shift)


@st.composite
def samplers(draw: DrawFn, block: int, tokens: int) -> dict[str, Any]:
    """Draw how tokens are revealed, of what fits a model trained in blocks of `block` and `tokens` tokens."""
    found: dict[str, Any] = {
        "order": draw(st.sampled_from(("confidence", "left_to_right", "random", "margin", "entropy")))
    }
    found["layout"] = draw(st.sampled_from(("tree", "batch")))
    found["cache"] = draw(st.sampled_from(("auto", "none") if block else ("auto", "dual")))
    width = block
    if not block:
        width = draw(st.sampled_from([size for size in (4, 6, 8) if tokens % size == 0] or [tokens]))
        found["block_length"] = width
    rule = draw(st.sampled_from(("schedule", "schedule", "threshold", "ancestral")))
    if rule != "schedule":
        found["rule"] = rule
    if rule == "threshold":
        found["threshold"] = draw(st.sampled_from((0.3, 0.6, 0.9)))
    elif draw(st.booleans()):
        found["steps"] = -(-tokens // width) * draw(st.integers(1, width))
    return found


@st.composite
def cases(draw: DrawFn, name: str, variants: range) -> Case:
    """Draw a call with drafter `name`."""
    spec = Spec(
        draw(st.sampled_from(variants)),
        draw(st.sampled_from((4, 8, 0))),
        draw(st.sampled_from(FAMILIES)),
        draw(st.booleans()),
    )
    params: dict[str, Any] = {"drafter": name, "gamma": draw(st.integers(1, 7))}
    for option in inspect.signature(DRAFTERS[name]).parameters:
        if option in OPTIONS and (option == "graph" or draw(st.booleans())):
            params[option] = draw(OPTIONS[option])
    lengths = tuple(draw(st.lists(st.integers(1, 14), min_size=1, max_size=6)))
    tokens = draw(st.integers(1, 24))
    sampler = draw(samplers(spec.block, tokens))
    temperature = draw(st.sampled_from((0.0, 1.0, 0.7)))
    case = Case(spec, params, lengths, tokens, sampler, temperature, seed=draw(st.integers(0, 3)))
    texts = reference(case)
    ends = st.sampled_from(sorted({token for text in texts for token in text}))
    eos = tuple(draw(st.lists(ends, max_size=2, unique=True))) if draw(st.booleans()) else ()
    return Case(spec, params, lengths, tokens, sampler, temperature, eos, draw(st.booleans()), case.seed)


def _given(case: Case) -> dict[str, Any]:
    rows = random_prompts(case.lengths, case.model.seed)
    found: dict[str, Any] = {"input_ids": rows, "seed": case.seed, "max_new_tokens": case.tokens}
    if case.table:
        width = max(map(len, rows))
        found["input_ids"] = torch.tensor([[0] * (width - len(row)) + row for row in rows])
        found["attention_mask"] = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    if case.temperature:
        found |= {"do_sample": True, "temperature": case.temperature}
    return found | {"sampler": case.sampler, "eos_token_id": list(case.eos)}


def reference(case: Case) -> list[list[int]]:
    """Return what stepwise decoding gives, kept for as long as nothing but the draft changes."""
    key = (
        case.model,
        case.lengths,
        case.tokens,
        tuple(case.sampler.items()),
        case.temperature,
        case.eos,
        case.seed,
    )
    return _stepwise(key, _Once(case))


class _Once:
    """Carry a case into a cached call without being part of its key."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Once)

    def __hash__(self) -> int:
        return 0


@functools.lru_cache(maxsize=4096)
def _stepwise(key: tuple[Any, ...], once: _Once) -> list[list[int]]:
    """Decode stepwise; where rows need no noise, each alone, which is what a batch must give too."""
    del key
    case = once.case
    model = model_of(case.model)
    given = _given(case)
    found = ssd_infer.generate(model, **given).sequences
    drawn = (
        case.temperature > 0 or case.sampler["order"] == "random" or case.sampler.get("rule") == "ancestral"
    )
    if not drawn:
        rows = random_prompts(case.lengths, case.model.seed)
        given.pop("attention_mask", None)
        alone = [ssd_infer.generate(model, **(given | {"input_ids": [row]})).sequences[0] for row in rows]
        assert found == alone, f"stepwise decoding of a batch: {difference(found, alone)}"
    return found


def check(case: Case, tally: Tally) -> None:
    """Decode one case and compare it with stepwise decoding; count what it did."""
    wanted = reference(case)
    streamed: dict[int, list[int]] = {}
    try:
        out = ssd_infer.generate(
            model_of(case.model),
            **_given(case),
            draft="fewer_steps",
            draft_params=case.params,
            streamer=lambda row, tokens: streamed.setdefault(row, []).extend(tokens),
        )
    except SSDError as refusal:
        tally.refuse(refusal)
        return
    total = out.stats.total
    tally.decodings += 1
    tally.rows += len(out.sequences)
    tally.tokens += total.emitted
    tally.could += case.tokens > 2
    tally.drafted += total.drafted > 0
    tally.rounds += total.rounds if total.drafted else 0
    tally.accepted += total.accepted
    assert out.sequences == wanted, difference(out.sequences, wanted)
    assert [streamed.get(row, []) for row in range(len(wanted))] == wanted, "what was streamed"
    _ends(wanted, case)


def _ends(texts: Sequence[Sequence[int]], case: Case) -> None:
    """Check that rows end at their first EOS, or are as long as was asked."""
    for text in texts:
        places = [at for at, token in enumerate(text) if token in case.eos]
        assert len(text) == (places[0] + 1 if places else case.tokens), f"{text} ends in the wrong place"


def show(case: Case) -> None:
    """Check one case by itself and say that it passed."""
    check(case, Tally())
    print("no difference")


def arm(name: str) -> Arm:
    """Return the arm of a drafter."""

    def drawn(variants: range) -> SearchStrategy[Case]:
        return cases(name, variants)

    return Arm(f"fewer_steps {name}", drawn, check)


def arms() -> list[Arm]:
    """Return an arm for every drafter there is."""
    return [arm(name) for name in DRAFTERS]

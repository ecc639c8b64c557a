"""Sampling with any draft: thousands of rows over a tiny vocabulary against the enumerated law of the model itself.

Every case draws `ROWS` rows and fails only if a chi-square test rejects at `LEVEL` twice: the second time on `AGAIN`
times as many new draws. Were all drafts lawful, a case would fail by chance with probability LEVEL², 1e-12, or rather
less than 1e-8, since the distribution of the statistic is an approximation that far out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from scipy.stats import chisquare

import ssd_infer
from ssd_infer.errors import SSDError
from ssd_infer.strategies import registry as drafts
from tests.fuzz.campaign import Arm
from tests.fuzz.models import Spec, built, families_for, prompt_of
from tests.fuzz.parameters import parameters
from tests.fuzz.tally import Tally
from tests.transformers_rules import processed

__all__ = ["Case", "Spec", "show"]
VOCABULARY, LONGEST = 5, 4
ROWS, AGAIN, LEVEL = 300, 10, 1e-6
SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.5, "top_k": 3},
    {"repetition_penalty": 1.6},
    {"suppress_tokens": [1, 4], "temperature": 0.8, "top_p": 0.9},
    {"no_repeat_ngram_size": 2, "top_k": 4},
    {"min_p": 0.15, "temperature": 1.4, "sequence_bias": [[[2], 1.0], [[2, 3], -3.0]]},
)
"""Sampling, with rules of generation and without."""
Law = dict[tuple[int, ...], float]


@dataclass(frozen=True, slots=True)
class Case:
    """A batch of `ROWS` rows of each prompt, sampled."""

    model: Spec
    draft: str
    params: dict[str, Any]
    prompts: tuple[int, ...]
    budget: int
    sampling: dict[str, Any]
    eos: tuple[int, ...] = ()
    seed: int = 0


@st.composite
def cases(draw: DrawFn, name: str, variants: range) -> Case:
    """Draw a batch for strategy `name`."""
    strategy = drafts.get(name)
    specs = [Spec(spec.family, spec.variant, VOCABULARY) for spec in families_for(strategy, variants)]
    model = draw(st.sampled_from([spec for spec in specs if spec.family != "offloaded"]))
    params = draw(parameters(strategy.Params, built(model).scope))
    prompts = tuple(draw(st.lists(st.integers(0, 99), min_size=1, max_size=3, unique=True)))
    eos = (draw(st.integers(0, VOCABULARY - 1)),) if draw(st.booleans()) else ()
    sampling = draw(st.sampled_from(SETTINGS))
    budget = draw(st.sampled_from((LONGEST, 3, 2)))
    return Case(model, name, params, prompts, budget, sampling, eos, draw(st.integers(0, 999)))


@torch.inference_mode()
def law(case: Case, prompt: Sequence[int]) -> Law:
    """Enumerate the probability of every output after `prompt`, by the model's own forward and processors."""
    model = built(case.model).model
    given = {"do_sample": True, "top_k": 0} | case.sampling
    ended: Law = {}
    going: Law = {(): 1.0}
    for length in range(1, case.budget + 1):
        heads = list(going)
        logits = model(input_ids=torch.tensor([[*prompt, *head] for head in heads]), use_cache=False).logits
        grown: Law = {}
        scores = processed(model, prompt, heads, logits[:, -1], eos=case.eos, **given)
        for head, row in zip(heads, scores.softmax(-1).tolist(), strict=True):
            for token, share in enumerate(row):
                done = token in case.eos or length == case.budget
                if share:
                    (ended if done else grown)[*head, token] = going[head] * share
        going = grown
        if not going:
            break
    return ended


def check(case: Case, tally: Tally) -> None:
    """Compare the counts of every output with the law; AssertionError if they do not belong together."""
    laws = {row: law(case, prompt_of(row, VOCABULARY)) for row in case.prompts}
    strategy = drafts.get(case.draft)
    try:
        promised = strategy.claims(strategy.parse(case.params, built(case.model).target))
        counts = _draw(case, ROWS, case.seed, tally)
    except SSDError as refusal:
        tally.refuse(refusal)
        return
    if promised and worst(counts, laws) < LEVEL:
        again = worst(_draw(case, AGAIN * ROWS, case.seed + 1, tally), laws)
        assert again >= LEVEL, f"p-value {again:.1e} of {AGAIN * ROWS} rows a prompt"


def _draw(case: Case, rows: int, seed: int, tally: Tally) -> dict[int, Counter[tuple[int, ...]]]:
    """Decode `rows` rows of every prompt together; return how often each output came up."""
    prompts = [row for _ in range(rows) for row in case.prompts]
    out = ssd_infer.generate(
        built(case.model).model,
        [list(prompt_of(row, VOCABULARY)) for row in prompts],
        draft=case.draft,
        draft_params=case.params,
        max_new_tokens=case.budget,
        do_sample=True,
        eos_token_id=list(case.eos),
        seed=seed,
        **case.sampling,
    )
    total = out.stats.total
    tally.decodings += 1
    tally.rows += len(prompts)
    tally.tokens += total.emitted
    tally.could += case.budget > 2
    tally.drafted += total.drafted > 0
    tally.rounds += total.rounds if total.drafted else 0
    tally.accepted += total.accepted
    counts: dict[int, Counter[tuple[int, ...]]] = {row: Counter() for row in case.prompts}
    for row, text in zip(prompts, out.sequences, strict=True):
        counts[row][tuple(text)] += 1
    return counts


def worst(counts: Mapping[int, Counter[tuple[int, ...]]], laws: Mapping[int, Law]) -> float:
    """Return the smallest p-value of any prompt, times how many there are (Bonferroni)."""
    return len(counts) * min(p_value(counts[row], laws[row]) for row in counts)


def p_value(counts: Counter[tuple[int, ...]], law: Law) -> float:
    """Return the chi-square p-value of `counts`; 0 if an impossible output came up. Rare outputs share one cell."""
    if not set(counts) <= set(law):
        return 0.0
    rows = counts.total()
    common = [text for text in law if law[text] * rows >= 10]
    seen = [float(counts[text]) for text in common]
    wanted = [law[text] * rows for text in common]
    rest = rows - sum(wanted)
    if rest >= 10:
        seen, wanted = [*seen, rows - sum(seen)], [*wanted, rest]
    if len(seen) < 2:
        return 1.0
    scale = sum(seen) / sum(wanted)
    return float(chisquare(seen, [value * scale for value in wanted]).pvalue)


def show(case: Case) -> None:
    """Check one case by itself and say that it passed."""
    check(case, Tally())
    print("no difference")


def arm(name: str) -> Arm:
    """Return the arm of a strategy."""

    def drawn(variants: range) -> SearchStrategy[Case]:
        return cases(name, variants)

    return Arm(f"law {name}", drawn, check, share=0.08)


def arms() -> list[Arm]:
    """Return an arm for every strategy registered now that promises the law of plain sampling."""
    return [arm(name) for name, strategy in drafts.registry().items() if strategy.lossless]

"""The exact law of sampled texts, by enumeration with the model's own forward, and how well decoded texts follow it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from scipy.stats import chisquare

import ssd_infer
from ssd_infer.engine.sampling import Sampler, SamplingParams
from ssd_infer.strategies.run import GenerateOutput

PROMPT = [2, 3, 4, 2, 3, 4, 2, 3]
Law = dict[tuple[int, ...], float]
"""The probability of every text."""
FEWEST = 5
"""Texts expected less often share one cell."""


@torch.inference_mode()
def law(model: Any, settings: dict[str, Any], new: int) -> Law:
    """Enumerate the probability of every continuation of `PROMPT` by `new` tokens."""
    sampler = Sampler(SamplingParams(do_sample=True, **settings), torch.device("cpu"), 0)
    table: Law = {(): 1.0}
    for _ in range(new):
        prefixes = list(table)
        ids = torch.tensor([[*PROMPT, *prefix] for prefix in prefixes])
        probs = sampler.probs(model(input_ids=ids).logits[:, -1]).tolist()
        table = {
            (*prefix, token): table[prefix] * share
            for prefix, row in zip(prefixes, probs, strict=True)
            for token, share in enumerate(row)
        }
    return table


def sampled(
    model: Any,
    settings: dict[str, Any],
    name: str,
    params: dict[str, Any],
    new: int,
    rows: int,
    seed: int = 11,
) -> GenerateOutput:
    """Decode `rows` continuations of `PROMPT` by `new` tokens with a draft."""
    return ssd_infer.generate(
        model,
        [PROMPT] * rows,
        draft=name,
        draft_params=params,
        max_new_tokens=new,
        do_sample=True,
        seed=seed,
        **settings,
    )


def p_of(texts: Sequence[Sequence[int]], expected: Mapping[tuple[int, ...], float]) -> float:
    """Return the chi-square p-value of decoded texts against their law; 0 where an impossible one came up."""
    counts, rows = Counter(map(tuple, texts)), len(texts)
    if any(expected.get(text, 0.0) == 0.0 for text in counts):
        return 0.0
    common = [text for text, share in expected.items() if share * rows >= FEWEST]
    seen, wanted = [float(counts[text]) for text in common], [expected[text] * rows for text in common]
    rest = rows - sum(wanted)
    if rest > FEWEST:
        seen, wanted = [*seen, rows - sum(seen)], [*wanted, rest]
    scale = sum(seen) / sum(wanted)
    return float(chisquare(seen, [value * scale for value in wanted]).pvalue)

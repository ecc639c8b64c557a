"""Measure a draft against plain decoding before it is trusted: a predicted gain that is small may be none."""

from __future__ import annotations

import time
import weakref
from statistics import median

from torch import nn

from ssd_infer.drafts.base import Drafter, DraftParams
from ssd_infer.engine.loop import decode
from ssd_infer.engine.sampling import Sampler, SamplingParams
from ssd_infer.engine.stopping import StopRule
from ssd_infer.engine.surroundings import surroundings_key
from ssd_infer.engine.target import Target

SURE = 1.5
"""Predicted speedup from which on no measurement is asked for."""
PAIRS, TOKENS, PROMPT_TOKENS, SECONDS = 4, 48, 96, 20.0
"""Timed pairs, tokens decoded in each, longest prompt, and seconds after which no further pair is begun."""


def race(
    target: Target,
    strategy: type[Drafter],
    params: DraftParams,
    prompts: list[list[int]],
    do_sample: bool,
    pairs: int = PAIRS,
    tokens: int = TOKENS,
    pooled: bool = False,
) -> float:
    """Return what `summary` makes of the plain and draft seconds of `pairs` decodings of the same prompt and seed."""
    begin, timed = time.perf_counter(), list[tuple[float, float]]()
    for turn in range(pairs + 1):
        prompt, seconds = prompts[turn % len(prompts)][-PROMPT_TOKENS:], dict[bool, float]()
        for drafting in (False, True) if turn % 2 else (True, False):
            sampler = Sampler(SamplingParams(do_sample=do_sample), target.device, seed=turn)
            start = time.perf_counter()
            decode(
                target,
                [prompt],
                strategy if drafting else None,
                params if drafting else None,
                tokens if turn else min(tokens, 4),
                sampler,
                StopRule(),
            )
            seconds[drafting] = time.perf_counter() - start
        if turn:  # the first pair only warms up
            timed.append((seconds[False], seconds[True]))
            if time.perf_counter() - begin > SECONDS:
                break
    return summary(timed, pooled=pooled)


def summary(timed: list[tuple[float, float]], *, pooled: bool) -> float:
    """Return the speedup of (plain, draft) seconds: the median of the pairs, or of all together.

    Noise moves the median less. Pooled is what a user gains where few prompts gain much and many little.
    """
    if pooled:
        return sum(plain for plain, _ in timed) / sum(draft for _, draft in timed)
    return median(plain / draft for plain, draft in timed)


_Key = tuple[str, str, bool, tuple[str, ...]]
_known: weakref.WeakKeyDictionary[nn.Module, dict[_Key, float]] = weakref.WeakKeyDictionary()


def measured_speedup(
    target: Target,
    strategy: type[Drafter],
    params: DraftParams,
    prompts: list[list[int]],
    do_sample: bool,
    pairs: int = PAIRS,
    *,
    pooled: bool = False,
) -> float:
    """Return the race of this model and draft, run the first time it is asked for in these surroundings."""
    races = _known.setdefault(target.model, {})
    key = (strategy.name, repr(params), do_sample, surroundings_key(target))
    if key not in races:
        races[key] = race(target, strategy, params, prompts, do_sample, pairs, pooled=pooled)
    return races[key]


def least_running(predicted: float, measured: float) -> float:
    """Return the running speedup by predicted costs below which drafting loses, given what a race measured."""
    return max(1.0, predicted / measured)

"""Measure a draft against plain decoding before it is trusted: a predicted gain that is small may be none."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from statistics import median

from torch import nn

from ssd_infer.drafts.base import Drafter, DraftParams
from ssd_infer.engine.loop import decode
from ssd_infer.engine.sampling import Sampler, SamplingParams
from ssd_infer.engine.stopping import StopRule
from ssd_infer.engine.surroundings import surroundings_key
from ssd_infer.engine.target import Target

_WARM_UP = 4
"""Tokens of the first pair."""
SURE = 1.5
"""Predicted speedup from which on no measurement is asked for."""
PAIRS, TOKENS, PROMPT_TOKENS, SECONDS = 4, 48, 96, 20.0
"""Timed pairs, tokens decoded in each, longest prompt, and seconds after which no further pair is begun."""


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
    """Return what `summary` makes of `pairs` plain and drafting decodings of the same prompt and seed.

    They are run the first time they are asked for in these surroundings.
    """

    def decoded(turn: int, drafting: bool) -> float:
        sampler = Sampler(SamplingParams(do_sample=do_sample), target.device, seed=turn)
        prompt, tokens = prompts[turn % len(prompts)][-PROMPT_TOKENS:], TOKENS if turn else _WARM_UP
        drafter, settled = (strategy, params) if drafting else (None, None)
        start = time.perf_counter()
        decode(target, [prompt], drafter, settled, tokens, sampler, StopRule())
        return time.perf_counter() - start

    races = _known.setdefault(target.model, {})
    key = (strategy.name, repr(params), do_sample, surroundings_key(target))
    if key not in races:
        races[key] = summary(_timed(pairs, decoded), pooled=pooled)
    return races[key]


def _timed(pairs: int, decoded: Callable[[int, bool], float]) -> list[tuple[float, float]]:
    """Return plain and draft seconds of up to `pairs` turns, after one that only warms up; who begins alternates."""
    begin, timed = time.perf_counter(), list[tuple[float, float]]()
    for turn in range(pairs + 1):
        order = (False, True) if turn % 2 else (True, False)
        seconds = {drafting: decoded(turn, drafting) for drafting in order}
        if turn:
            timed.append((seconds[False], seconds[True]))
            if time.perf_counter() - begin > SECONDS:
                break
    return timed


def summary(timed: list[tuple[float, float]], *, pooled: bool) -> float:
    """Return the speedup of (plain, draft) seconds: the median of the pairs, or of all together.

    Noise moves the median less. Pooled is what a user gains where few prompts gain much and many little.
    """
    if pooled:
        return sum(plain for plain, _ in timed) / sum(draft for _, draft in timed)
    return median(plain / draft for plain, draft in timed)


def least_running(predicted: float, measured: float) -> float:
    """Return the running speedup by predicted costs below which drafting loses, given what a race measured."""
    return max(1.0, predicted / measured)

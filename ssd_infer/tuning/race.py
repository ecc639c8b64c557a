"""Measure a draft against plain decoding before it is trusted: a predicted gain that is small may be none."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

from ssd_infer.engine.drafter import DraftParams
from ssd_infer.engine.loop import Planner, decode
from ssd_infer.engine.sampling import Sampler, SamplingParams
from ssd_infer.engine.stopping import StopRule
from ssd_infer.engine.target import Target
from ssd_infer.tuning.memo import Memo

_WARM_UP = 4
"""Tokens of the first turn."""
SURE = 1.5
"""Predicted speedup from which on no measurement is asked for."""
PAIRS, TOKENS, PROMPT_TOKENS, SECONDS = 4, 48, 96, 20.0
"""Timed pairs, tokens decoded in each, longest prompt, and seconds after which no further turn is begun."""


_known: Memo[list[tuple[float, ...]]] = Memo()


def measured_speedup(
    target: Target, strategy: Planner, params: DraftParams, prompts: list[list[int]], do_sample: bool
) -> float:
    """Return the median speedup of `PAIRS` plain and drafting decodings of the same prompt and seed."""
    return raced_speedups(target, strategy, [params], prompts, do_sample, PAIRS, _median)[0]


def _pooled(plain: Sequence[float], draft: Sequence[float]) -> float:
    """Return the speedup of all turns' seconds together: what a user gains where few prompts gain much."""
    return sum(plain) / sum(draft)


def _median(plain: Sequence[float], draft: Sequence[float]) -> float:
    """Return the median speedup of a turn, which noise moves less."""
    return median(first / second for first, second in zip(plain, draft, strict=True))


def raced_speedups(
    target: Target,
    strategy: Planner,
    entrants: Sequence[DraftParams],
    prompts: list[list[int]],
    do_sample: bool,
    turns: int,
    summary: Callable[[Sequence[float], Sequence[float]], float] = _pooled,
) -> list[float]:
    """Return each entrant's speedup in a race of all of them and plain decoding, every one with the same prompts.

    `summary` makes it of the plain and the entrant's seconds of all turns. They race the first time it is asked for in
    this environment.
    """

    def decoded(turn: int, contender: int) -> float:
        sampler = Sampler(SamplingParams(do_sample=do_sample), target.device, seed=turn)
        prompt, tokens = prompts[turn % len(prompts)][-PROMPT_TOKENS:], TOKENS if turn else _WARM_UP
        drafter, resolved = (strategy, entrants[contender - 1]) if contender else (None, None)
        start = time.perf_counter()
        decode(target, [prompt], drafter, resolved, tokens, sampler, StopRule())
        return time.perf_counter() - start

    key = (str(strategy), tuple(map(repr, entrants)), do_sample)
    race = _known.cached(target.model, key, lambda: _timed(turns, 1 + len(entrants), decoded))
    plain, *drafts = zip(*race, strict=True)
    return [summary(plain, draft) for draft in drafts]


def _timed(turns: int, contenders: int, decoded: Callable[[int, int], float]) -> list[tuple[float, ...]]:
    """Return the seconds of all contenders for up to `turns` turns, after one that only warms up; all begin in turn."""
    begin, timed = time.perf_counter(), list[tuple[float, ...]]()
    for turn in range(turns + 1):
        order = [(turn + place) % contenders for place in range(contenders)]
        seconds = {contender: decoded(turn, contender) for contender in order}
        if turn:
            timed.append(tuple(seconds[contender] for contender in range(contenders)))
            if time.perf_counter() - begin > SECONDS:
                break
    return timed


def least_running(predicted: float, measured: float) -> float:
    """Return the running speedup by predicted costs below which drafting loses, given what a race measured."""
    return max(1.0, predicted / measured)

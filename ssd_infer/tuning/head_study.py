"""What a draft head is worth: how often its tokens are the target's, and how long it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ssd_infer.engine.heads.context import ContextHead
from ssd_infer.engine.heads.head import DraftHead
from ssd_infer.engine.laws import Scored
from ssd_infer.engine.sampling import Sampler, SamplingParams
from ssd_infer.engine.session import Row
from ssd_infer.engine.target import Target
from ssd_infer.tuning.calibration_text import Scores, compare
from ssd_infer.tuning.costs import quiet_seconds, timed
from ssd_infer.tuning.draft_heads import FULL, HeadOption, make_head
from ssd_infer.tuning.head_ground import cached_ground
from ssd_infer.tuning.memo import Memo

_REPEATS = 9
_RECENT = 400
"""Tokens of a text, beside the static ones, that the timed context head has."""


@dataclass(frozen=True, slots=True)
class HeadScores:
    """What a draft does with one head along texts `(…, B, T)`."""

    scores: Scores
    coverage: float
    """Share of the target's tokens (greedy) or of its probability (sampling) that the head looks at: α's ceiling."""

    @classmethod
    def joined(cls, parts: Sequence[HeadScores]) -> HeadScores:
        """Return the scores of several texts of one length as those of one batch."""
        acceptance, confidence = (
            torch.cat([getattr(part.scores, name) for part in parts]) for name in ("acceptance", "confidence")
        )
        return cls(Scores(acceptance, confidence), sum(part.coverage for part in parts) / len(parts))


@torch.inference_mode()
def along_text(
    head: DraftHead,
    sampler: Sampler,
    states: Tensor,
    reference: Tensor,
    texts: Sequence[list[int]],
    starts: Sequence[int],
) -> HeadScores:
    """Compare what `head` makes of `states` `(…, B, T, d)` with the target's `reference`, as `choices` returns it.

    The state at column t of row b was made of `texts[b]` up to its token `starts[b] + t`: what a context head has then.
    """
    head.follow([Row(row, tokens, len(tokens), 0) for row, tokens in enumerate(texts)])
    scored = head.scores(states)
    if isinstance(head, ContextHead) and scored.ids is not None:
        scored = _up_to_each(scored, head, texts, starts)
    return HeadScores(compare(sampler, scored, reference), _coverage(scored, sampler, reference))


def _up_to_each(
    scored: Scored, head: ContextHead, texts: Sequence[list[int]], starts: Sequence[int]
) -> Scored:
    """Hide from every position the tokens that come up later in its text."""
    assert scored.ids is not None
    shared, width = len(head.static.ids), scored.logits.shape[-2]
    first: list[list[int]] = []
    for row, tokens in zip(scored.ids[:, 0, shared:].tolist(), texts, strict=True):
        seen: dict[int, int] = {}
        for at, token in enumerate(tokens):
            seen.setdefault(token, at)
        first.append([seen.get(token, 0) for token in row])
    begins = torch.tensor(first, device=scored.ids.device).view(len(texts), 1, -1)
    ends = torch.tensor(list(starts), device=begins.device).view(-1, 1, 1) + torch.arange(
        width, device=begins.device
    ).view(1, -1, 1)
    logits = scored.logits.clone()
    logits[..., shared:].masked_fill_(begins > ends, -torch.inf)
    return Scored(logits, scored.ids)


def _coverage(scored: Scored, sampler: Sampler, reference: Tensor) -> float:
    if scored.ids is None:
        return 1.0
    if sampler.greedy:
        wanted = reference.expand(scored.logits.shape[:-1])
        return float((scored.columns(wanted) < scored.logits.shape[-1]).float().mean())
    p = reference.expand(*scored.logits.shape[:-1], -1).gather(-1, scored.ids.expand(scored.logits.shape))
    return float(p.masked_fill(scored.logits == -torch.inf, 0.0).sum(dim=-1).mean())


_seconds: Memo[dict[HeadOption, float]] = Memo()


def head_seconds(
    target: Target, options: Sequence[HeadOption], prompts: Sequence[list[int]], do_sample: bool
) -> dict[HeadOption, float]:
    """Return the seconds each option, and the full head, take to choose a token of one row; measured in turns, once."""
    wanted = [FULL, *options]
    known = _seconds.get(target.model, do_sample) or {}
    if not set(wanted) <= set(known):
        known = known | _timed(target, wanted, prompts, do_sample)
        _seconds.put(target.model, do_sample, known)
    return {option: known[option] for option in wanted}


@torch.inference_mode()
def _timed(
    target: Target, options: Sequence[HeadOption], prompts: Sequence[list[int]], do_sample: bool
) -> dict[HeadOption, float]:
    sampler = Sampler(SamplingParams(do_sample=do_sample), target.device, seed=0)
    order = cached_ground(target, prompts).order
    heads = [make_head(target, option, prompts, target.num_layers) for option in options]
    for option, head in zip(options, heads, strict=True):
        recent = order[option.size : option.size + _RECENT].tolist()
        head.follow([Row(0, recent, len(recent), 0)])
    hidden = target.embedding(torch.zeros((1, 1), dtype=torch.long, device=target.device))
    spent: list[list[float]] = [[] for _ in heads]
    for repeat in range(_REPEATS + 1):
        for samples, head in zip(spent, heads, strict=True):
            took = timed(partial(_choose, sampler, head, hidden), target.device)
            if repeat:
                samples.append(took)
    return {option: quiet_seconds(samples) for option, samples in zip(options, spent, strict=True)}


def _choose(sampler: Sampler, head: DraftHead, hidden: Tensor) -> None:
    """Score one state and choose a token."""
    sampler.choose(head.scores(hidden).last())

"""The exact acceptance rules: greedy prefix match, and speculative sampling.

Speculative sampling (arXiv 2211.17192, 2302.01318): accept draft x ~ q with probability min(1, p(x)/q(x)); on the
first rejection draw from norm(max(0, p - q)); after full acceptance draw the bonus token from p. A deterministic
draft has a one-hot q, which makes the rule: accept with probability p(x), otherwise draw from p without x.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ssd_infer.engine.laws import Law, Scored
from ssd_infer.engine.sampling import Sampler
from ssd_infer.engine.uniforms import Purpose


def accept(
    logits: Tensor,
    drafts: Tensor,
    counts: Tensor | None,
    law: Law | None,
    sampler: Sampler,
    unverified: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return accepted counts `(B,)` and the next token `(B,)` of each row.

    `logits` `(B, γ+1, V)` are the target's for the pending token and each draft; `drafts` `(B, γ)`; `counts` `(B,)`
    limits how many of a row's drafts are real (None: all); `law` `(B, γ)` is q, over all of V or a part of
    it, None for one-hot drafts. Drafts marked in `unverified` `(B, γ)` pass without being compared, which is lossy.
    """
    if sampler.greedy:
        choices = logits.argmax(dim=-1)
        accepted = _prefix(_or(choices[:, :-1] == drafts, unverified), counts)
        return accepted, choices.gather(1, accepted.unsqueeze(1)).squeeze(1)
    probs = sampler.probs(logits)
    if drafts.shape[1] == 0:
        return drafts.new_zeros(drafts.shape[0]), sampler.draw(probs[:, 0], Purpose.FOLLOW)
    accepted = _prefix(_or(_passes(probs, drafts, law, sampler), unverified), counts)
    return accepted, sampler.draw(_rest(probs, drafts, counts, law, accepted), Purpose.FOLLOW)


def accept_scored(
    scored: Scored, drafts: Tensor, counts: Tensor | None, sampler: Sampler
) -> tuple[Tensor, Tensor]:
    """Let what has `scored` `(B, γ+1, K)` some tokens verify deterministic `drafts` `(B, γ)`, as `accept` does.

    Drafts it has no score for have probability 0 under its law, and what follows is drawn from that law.
    """
    if scored.ids is None:
        return accept(scored.logits, drafts, counts, None, sampler)
    ids = scored.ids if scored.ids.dim() == 1 else scored.ids.expand(scored.logits.shape)
    before = Scored(scored.logits[:, :-1], ids if ids.dim() == 1 else ids[:, :-1])
    beside = scored.logits.new_full((*scored.logits.shape[:-1], 1), -torch.inf)
    logits = torch.cat([scored.logits, beside], dim=-1)
    accepted, column = accept(logits, before.columns(drafts), counts, None, sampler)
    rows = torch.arange(drafts.shape[0], device=drafts.device)
    return accepted, ids[column] if ids.dim() == 1 else ids[rows, accepted, column]


def _or(passed: Tensor, unverified: Tensor | None) -> Tensor:
    return passed if unverified is None else passed | unverified


def _prefix(passed: Tensor, counts: Tensor | None) -> Tensor:
    """Return the length of each row's leading run of True `(B, γ)` → `(B,)`, never beyond `counts`."""
    if counts is not None:
        steps = torch.arange(passed.shape[1], device=passed.device)
        passed = passed & (steps < counts.unsqueeze(1))
    return passed.long().cumprod(dim=1).sum(dim=1)


def _passes(probs: Tensor, drafts: Tensor, law: Law | None, sampler: Sampler) -> Tensor:
    """Return which drafts pass u < p/q `(B, γ)`, written as u·q < p so that q = 0 needs no special case."""
    index = drafts.unsqueeze(-1)
    p = probs[:, :-1].gather(-1, index).squeeze(-1)
    u = sampler.uniform(p)
    return u < p if law is None else u * law.of(drafts) < p


def _rest(probs: Tensor, drafts: Tensor, counts: Tensor | None, law: Law | None, accepted: Tensor) -> Tensor:
    """Return the distribution `(B, V)` of the token after each row's accepted prefix."""
    rows = torch.arange(probs.shape[0], device=probs.device)
    p = probs[rows, accepted]
    limit = drafts.shape[1] if counts is None else counts
    rejected = (accepted < limit).unsqueeze(-1)
    at = accepted.clamp(max=drafts.shape[1] - 1)
    one_hot = drafts[rows, at].unsqueeze(-1)
    left = p.scatter(-1, one_hot, 0.0) if law is None else law.at(rows, at).left_of(p)
    # p == q to the last bit leaves nothing of p - q; such a rejection has probability 0 and p is then the right law.
    usable = rejected & (left.sum(dim=-1, keepdim=True) > 0)
    return torch.where(usable, left, p)

"""The exact acceptance rules: greedy prefix match, and speculative sampling.

Speculative sampling (arXiv 2211.17192, 2302.01318): accept draft x ~ q with probability min(1, p(x)/q(x)); on the
first rejection draw from norm(max(0, p - q)); after full acceptance draw the bonus token from p. A deterministic
draft has a one-hot q, which makes the rule: accept with probability p(x), otherwise draw from p without x.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ssd_infer.engine.sampling import Sampler
from ssd_infer.engine.uniforms import Purpose


def accept(
    logits: Tensor,
    drafts: Tensor,
    counts: Tensor | None,
    draft_probs: Tensor | None,
    sampler: Sampler,
    unverified: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return accepted counts `(B,)` and the next token `(B,)` of each row.

    `logits` `(B, γ+1, V)` are the target's for the pending token and each draft; `drafts` `(B, γ)`; `counts` `(B,)`
    limits how many of a row's drafts are real (None: all); `draft_probs` `(B, γ, V)` is q, None for one-hot drafts.
    Drafts marked in `unverified` `(B, γ)` pass without being compared, which is lossy.
    """
    if sampler.greedy:
        choices = logits.argmax(dim=-1)
        accepted = _prefix(_or(choices[:, :-1] == drafts, unverified), counts)
        return accepted, choices.gather(1, accepted.unsqueeze(1)).squeeze(1)
    probs = sampler.probs(logits)
    if drafts.shape[1] == 0:
        return drafts.new_zeros(drafts.shape[0]), sampler.draw(probs[:, 0], Purpose.FOLLOW)
    accepted = _prefix(_or(_passes(probs, drafts, draft_probs, sampler), unverified), counts)
    return accepted, sampler.draw(_rest(probs, drafts, counts, draft_probs, accepted), Purpose.FOLLOW)


def _or(passed: Tensor, unverified: Tensor | None) -> Tensor:
    return passed if unverified is None else passed | unverified


def _prefix(passed: Tensor, counts: Tensor | None) -> Tensor:
    """Return the length of each row's leading run of True `(B, γ)` → `(B,)`, never beyond `counts`."""
    if counts is not None:
        steps = torch.arange(passed.shape[1], device=passed.device)
        passed = passed & (steps < counts.unsqueeze(1))
    return passed.long().cumprod(dim=1).sum(dim=1)


def _passes(probs: Tensor, drafts: Tensor, draft_probs: Tensor | None, sampler: Sampler) -> Tensor:
    """Return which drafts pass u < p/q `(B, γ)`, written as u·q < p so that q = 0 needs no special case."""
    index = drafts.unsqueeze(-1)
    p = probs[:, :-1].gather(-1, index).squeeze(-1)
    u = sampler.uniform(p)
    return u < p if draft_probs is None else u * draft_probs.gather(-1, index).squeeze(-1) < p


def _rest(
    probs: Tensor, drafts: Tensor, counts: Tensor | None, draft_probs: Tensor | None, accepted: Tensor
) -> Tensor:
    """Return the distribution `(B, V)` of the token after each row's accepted prefix."""
    rows = torch.arange(probs.shape[0], device=probs.device)
    p = probs[rows, accepted]
    limit = drafts.shape[1] if counts is None else counts
    rejected = (accepted < limit).unsqueeze(-1)
    at = accepted.clamp(max=drafts.shape[1] - 1)
    if draft_probs is None:
        left = p.scatter(-1, drafts[rows, at].unsqueeze(-1), 0.0)
    else:
        left = (p - draft_probs[rows, at]).clamp_(min=0.0)
    # p == q to the last bit leaves nothing of p - q; such a rejection has probability 0 and p is then the right law.
    usable = rejected & (left.sum(dim=-1, keepdim=True) > 0)
    return torch.where(usable, left, p)

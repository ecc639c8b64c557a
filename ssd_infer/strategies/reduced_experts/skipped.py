"""How far tokens that were emitted uncompared are from what the full model would have said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ssd_infer.engine.sampling import Sampler
from ssd_infer.engine.session import Feedback


@dataclass(slots=True)
class Skipped:
    """Sums over tokens emitted uncompared; the verify pass after them says what the full model thinks of each.

    That pass has the full model's own keys of everything before, so these are teacher-forced figures of the output.
    """

    emitted: int = 0
    """All tokens that verify passes let through, their own included, as far as a row's budget goes."""
    tokens: int = 0
    agreed: int = 0
    kl: float = 0.0
    """Σ KL(full || draft) in nats."""

    def learn(self, feedback: Feedback, logits: Tensor, sampler: Sampler, room: Sequence[int]) -> None:
        """Count one verify pass; `logits` `(B, γ, V)` are the draft's, `room` the tokens each row may still emit."""
        proposal, width = feedback.proposal, feedback.proposal.width
        if proposal.unverified is None:
            return
        steps = torch.arange(width, device=logits.device)
        kept = [min(count, left) for count, left in zip(feedback.accepted, room, strict=True)]
        taken = torch.tensor(kept, device=logits.device)
        skipped = proposal.unverified & (steps[None, :] < taken[:, None])
        full = feedback.logits[:, :width]
        said = proposal.tokens if sampler.greedy else logits.argmax(-1)
        agreed = full.argmax(-1) == said
        p, q = (part.float().log_softmax(-1) for part in (full[skipped], logits[skipped]))
        possible = p > -torch.inf  # what rules forbid has no share in the divergence
        self.kl += float((p.exp() * (p - q))[possible].sum())
        self.tokens += int(skipped.sum())
        self.agreed += int((agreed & skipped).sum())
        self.emitted += sum(min(count + 1, left) for count, left in zip(kept, room, strict=True))

    def report(self) -> dict[str, Any]:
        """Return agreement, mean KL and share of tokens emitted uncompared, and the share of wrong tokens overall."""
        count = self.tokens
        return {
            "skipped_share": count / self.emitted if self.emitted else None,
            "agreement": self.agreed / count if count else None,
            "kl": self.kl / count if count else None,
            "disagreement": (count - self.agreed) / self.emitted if self.emitted else None,
            "skipped": count,
            "emitted": self.emitted,
        }

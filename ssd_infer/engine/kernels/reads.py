"""Count what attention reads of the cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class Reads:
    """Slots of a layer and head read so far by drafts and verification, and what plain decoding would have read."""

    draft: int = 0
    verify: int = 0
    plain: int = 0
    tokens: int = 0

    def drafted(self, lengths: Sequence[int], gamma: int, width: int | None) -> None:
        """Count γ draft steps of rows that read `width` slots, or all of theirs (None), and each other's drafts."""
        base = sum(lengths) if width is None else width * len(lengths)
        self.draft += gamma * base + len(lengths) * gamma * (gamma - 1) // 2

    def verified(self, lengths: Sequence[int], drafts: Sequence[int], accepted: Sequence[int]) -> None:
        """Count one verify pass of rows of `lengths` slots; the same tokens one by one would read them each time."""
        for length, count, taken in zip(lengths, drafts, accepted, strict=True):
            self.verify += length + count + 1
            self.plain += (taken + 1) * length + (taken + 1) * (taken + 2) // 2
            self.tokens += taken + 1

    def report(self, slot_bytes: int) -> dict[str, float]:
        """Return slots and bytes a token, given the bytes of a slot over all layers and heads."""
        tokens = max(1, self.tokens)
        read = (self.draft + self.verify) / tokens
        return {
            "slots_per_token_draft": self.draft / tokens,
            "slots_per_token_verify": self.verify / tokens,
            "kv_bytes_per_token": read * slot_bytes,
            "kv_bytes_per_token_plain": self.plain / tokens * slot_bytes,
        }

"""Word and character error rates over utterances, counted with jiwer, with bootstrap intervals."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Edits:
    """Edits and reference units of one utterance or of many; `rate` is micro-averaged: Σ edits ÷ Σ units."""

    edits: int
    units: int

    @property
    def rate(self) -> float:
        """Return the error rate."""
        return self.edits / self.units if self.units else 0.0


def normalise(text: str) -> str:
    """Return `text` in lower case, compatibility-normalised, with single spaces for all but letters, digits and '."""
    folded = unicodedata.normalize("NFKC", text).lower().replace("’", "'")
    return re.sub(r"[^\w']+|_", " ", folded).strip()


@lru_cache(maxsize=65536)
def word_edits(reference: str, hypothesis: str) -> Edits:
    """Return the word edits that turn the normalised `reference` into `hypothesis`."""
    import jiwer

    found = jiwer.process_words(reference, hypothesis)
    return Edits(found.substitutions + found.deletions + found.insertions, len(reference.split()))


@lru_cache(maxsize=65536)
def character_edits(reference: str, hypothesis: str) -> Edits:
    """Return the character edits that turn the normalised `reference` into `hypothesis`."""
    import jiwer

    found = jiwer.process_characters(reference, hypothesis)
    return Edits(found.substitutions + found.deletions + found.insertions, len(reference))


def total(parts: Sequence[Edits]) -> Edits:
    """Return the sum."""
    return Edits(sum(part.edits for part in parts), sum(part.units for part in parts))


def words(references: Sequence[str], hypotheses: Sequence[str]) -> list[Edits]:
    """Return the word edits of each pair, both sides normalised."""
    pairs = zip(references, hypotheses, strict=True)
    return [word_edits(normalise(first), normalise(second)) for first, second in pairs]


def characters(references: Sequence[str], hypotheses: Sequence[str]) -> list[Edits]:
    """Return the character edits of each pair, both sides normalised."""
    pairs = zip(references, hypotheses, strict=True)
    return [character_edits(normalise(first), normalise(second)) for first, second in pairs]


def interval(parts: Sequence[Edits], seed: int = 0) -> list[float] | None:
    """Return the bootstrap 95 % interval of the rate over utterances; None for fewer than two."""
    if len(parts) < 2:
        return None
    table = torch.tensor([[part.edits, part.units] for part in parts], dtype=torch.float64)
    picks = torch.randint(len(parts), (RESAMPLES, len(parts)), generator=torch.Generator().manual_seed(seed))
    sums = table[picks].sum(dim=1)
    bounds = torch.quantile(sums[:, 0] / sums[:, 1], torch.tensor([0.025, 0.975], dtype=torch.float64))
    return [float(bound) for bound in bounds]


def auroc(right: Sequence[float], wrong: Sequence[float]) -> float | None:
    """Return how often a wrong draft's value exceeds a right one's, ties half; None when one side is empty."""
    if not right or not wrong:
        return None
    low, high = torch.tensor(right, dtype=torch.float64), torch.tensor(wrong, dtype=torch.float64)
    above = (high[:, None] > low).sum() + 0.5 * (high[:, None] == low).sum()
    return float(above) / (len(right) * len(wrong))


def deciles(values: Sequence[float]) -> list[float]:
    """Return the nine inner deciles; none for no values."""
    if not values:
        return []
    found: list[float] = torch.quantile(
        torch.tensor(values, dtype=torch.float64), torch.linspace(0.1, 0.9, 9, dtype=torch.float64)
    ).tolist()
    return found

"""The CTC head's greedy transcript as a draft, and how sure the head is of it (arXiv 2603.11243, gate 1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ssd_infer.models.asr_positions import within
from ssd_infer.strategies.ctc_draft.ctc_params import SEQUENCE


@dataclass(frozen=True, slots=True)
class Draft:
    """One utterance's greedy CTC transcript."""

    tokens: list[int]
    frames: list[int]
    """First encoder frame of each token."""
    entropy: float
    """How much the head doubts it, in nats: −ln P(transcript), or the frames' entropies aggregated (infinite when no
    frame was chosen)."""


def posteriors(logits: Tensor, special: Sequence[int], temperature: float = 1.0) -> Tensor:
    """Return CTC posteriors `(B, T, V)` in float32 or wider; ids in `special` (not the blank) get none."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    if special:
        bias = wide.new_zeros(wide.shape[-1])
        bias[list(special)] = -torch.inf
        wide = wide + bias
    return torch.softmax(wide if temperature == 1.0 else wide / temperature, dim=-1)


def entropy(probabilities: Tensor) -> Tensor:
    """Return H = −Σ_k P_t(k) ln P_t(k) `(B, T)` in nats, blank included; 0 ln 0 = 0."""
    summed: Tensor = torch.special.entr(probabilities).sum(dim=-1)
    return summed


def aggregate(values: Tensor, chosen: Tensor, how: str) -> list[float]:
    """Return max, 95th percentile or mean of `values` `(B, T)` over the `chosen` frames of each row."""
    if how == "max":
        return [
            value if value >= 0 else math.inf
            for value in values.masked_fill(~chosen, -1.0).amax(dim=1).tolist()
        ]
    kept = values.masked_fill(~chosen, torch.nan)
    found = kept.nanmean(dim=1) if how == "mean" else kept.nanquantile(0.95, dim=1)
    return [math.inf if math.isnan(value) else value for value in found.tolist()]


def collapse(path: Tensor, valid: Tensor, blank: int) -> Tensor:
    """Return bool `(B, T)`: frames that emit a token. Equal neighbours merge first, then blanks drop."""
    previous = torch.roll(path, 1, dims=1)
    previous[:, 0] = blank
    return (path != blank) & (path != previous) & valid


def draft(
    probabilities: Tensor, lengths: Tensor, blank: int, how: str | None = "max", frames: str = "valid"
) -> list[Draft]:
    """Return each row's greedy transcript with the doubt that gate 1 asks for; padding frames never count.

    `how` None asks for no doubt: it stays infinite.
    """
    path = probabilities.argmax(dim=-1)
    valid = within(lengths, path.shape[1])
    emits = collapse(path, valid, blank)
    chosen = valid if frames == "valid" else valid & (path != blank)
    found = [_draft(row, emit) for row, emit in zip(path.tolist(), emits.tolist(), strict=True)]
    tokens = [tokens for tokens, _ in found]
    if how is None:
        measures = [math.inf] * len(found)
    elif how == SEQUENCE:
        measures = surprise(probabilities, lengths, tokens, blank)
    else:
        measures = aggregate(entropy(probabilities), chosen, how)
    return [Draft(*item, measure) for item, measure in zip(found, measures, strict=True)]


def surprise(probabilities: Tensor, lengths: Tensor, tokens: list[list[int]], blank: int) -> list[float]:
    """Return −ln P(y) in nats of each row's transcript, summed over its alignments, under posteriors `(B, T, V)`."""
    sizes = torch.tensor([len(row) for row in tokens])
    joined = torch.tensor([token for row in tokens for token in row], dtype=torch.long)
    logs = probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny).log().transpose(0, 1)
    nats: list[float] = functional.ctc_loss(
        logs, joined.to(logs.device), lengths.cpu(), sizes, blank, reduction="none"
    ).tolist()
    return nats


def confidence(probabilities: Tensor, lengths: Tensor, blank: int) -> list[float]:
    """Return 1 − H/ln V averaged over the frames that are not blank, in [0, 1]; 0 when all are blank.

    The normalised Gibbs entropy of Laptev & Ginsburg (arXiv 2212.08703, eq. 8).
    """
    path = probabilities.argmax(dim=-1)
    valid = within(lengths, path.shape[1])
    spread = entropy(probabilities) / math.log(probabilities.shape[-1])
    means = aggregate(spread, valid & (path != blank), "mean")
    return [max(0.0, 1.0 - mean) if math.isfinite(mean) else 0.0 for mean in means]


def _draft(path: list[int], emits: list[bool]) -> tuple[list[int], list[int]]:
    """Return tokens, and the frame each begins in."""
    frames = [index for index, emit in enumerate(emits) if emit]
    return [path[index] for index in frames], frames

"""What a validation says of a speech model: error rates of the draft, and how much of it the decoder would accept."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ssd_infer.models.asr_positions import within
from ssd_infer.models.ctc_asr import CTCASRModel, EncoderOutput
from ssd_infer.strategies.ctc_draft.ctc import collapse
from ssd_train.losses.optimal import edit_table
from ssd_train.recipes.base import Ratio


def error_ratio(hypotheses: Sequence[Sequence[int]], labels: Sequence[Sequence[int]]) -> tuple[int, int]:
    """Return Σ edit distance and Σ length of the labels, in tokens."""
    edits = sum(int(edit_table(said, label)[-1, -1]) for said, label in zip(hypotheses, labels, strict=True))
    return edits, sum(len(label) for label in labels)


def word_error_ratio(hypotheses: Sequence[str], references: Sequence[str]) -> tuple[int, int]:
    """Return Σ word edits and Σ reference words."""
    numbers: dict[str, int] = {}
    rows = [
        [[numbers.setdefault(word, len(numbers)) for word in text.split()] for text in texts]
        for texts in (hypotheses, references)
    ]
    return error_ratio(*rows)


def accepted(model: CTCASRModel, encoded: EncoderOutput, drafts: Sequence[Sequence[int]]) -> tuple[int, int]:
    """Return how many drafted tokens the decoder would accept, and how many were drafted, one verify an utterance."""
    width = max(len(draft) for draft in drafts) + 1
    device = encoded.hidden.device
    inputs = torch.full((len(drafts), width), model.decoder.bos, device=device)
    for row, draft in enumerate(drafts):
        inputs[row, 1 : len(draft) + 1] = torch.tensor(list(draft), dtype=torch.long, device=device)
    said = model.decoder(inputs, encoded).argmax(dim=-1).tolist()
    kept = 0
    for draft, row in zip(drafts, said, strict=True):
        wrong = (place for place, token in enumerate(draft) if row[place] != token)
        kept += next(wrong, len(draft))
    return kept, sum(len(draft) for draft in drafts)


def validation_metrics(
    model: CTCASRModel,
    encoded: EncoderOutput,
    labels: list[list[int]],
    hypotheses: list[list[int]],
    decode: Callable[[list[int]], str] | None,
) -> dict[str, Ratio]:
    """Return error rates of the greedy CTC transcript and the simulated acceptance of it as a draft."""
    device = encoded.hidden.device

    def ratio(numerator: float, denominator: float) -> Ratio:
        return torch.tensor(float(numerator), device=device), torch.tensor(float(denominator), device=device)

    metrics = {"ctc_cer": ratio(*error_ratio(hypotheses, labels))}
    if decode is not None:
        texts = [[decode(row) for row in rows] for rows in (hypotheses, labels)]
        metrics["ctc_wer"] = ratio(*word_error_ratio(*texts))
    kept, drafted = accepted(model, encoded, hypotheses)
    metrics["draft_alpha"] = ratio(kept, drafted)
    metrics["tau_sim"] = ratio(kept + len(hypotheses), len(hypotheses))
    return metrics


def greedy_hypotheses(logits: Tensor, lengths: Tensor, blank: int) -> list[list[int]]:
    """Return the collapsed greedy CTC path of each row of `(B, T, V)`, padding never read."""
    path = logits.argmax(dim=-1)
    emits = collapse(path, within(lengths, path.shape[1]), blank)
    return [row[mask].tolist() for row, mask in zip(path.cpu(), emits.cpu(), strict=True)]

"""Agreement of draft and verifier: the decoder is drawn towards what the CTC head says of the same token."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ssd_infer.models.asr_positions import positions_of_tokens
from ssd_infer.strategies.ctc_draft.ctc import collapse


def agreement_loss_sum(
    ctc_logits: Tensor,
    frames: Tensor,
    decoder_logits: Tensor,
    labels: Tensor,
    label_lengths: Tensor,
    blank: int,
) -> tuple[Tensor, Tensor]:
    """Return Σ KL(CTC ‖ decoder) in nats over the aligned tokens, and how many there are.

    Row b counts where its greedy CTC transcript equals its label: token j is then aligned with the first frame of the
    path that reads it, whose posterior, without the blank, teaches the decoder's position j `(B, U, V)`. The teacher
    gets no gradient.
    """
    with torch.no_grad():
        path = ctc_logits.argmax(dim=-1)
        inside = torch.arange(path.shape[1], device=path.device) < frames[:, None]
        begins = collapse(path, inside, blank)
        index = positions_of_tokens(ctc_logits, blank)
        rows = _rows_read_right(path, begins, labels, label_lengths)
        row, frame = (begins & rows[:, None]).nonzero(as_tuple=True)
        token = index[row, frame]
        teacher_logits = ctc_logits[row, frame].float()
        teacher_logits[:, blank] = -torch.inf
        teacher = torch.softmax(teacher_logits, dim=-1)
    student = functional.log_softmax(decoder_logits[row, token].float(), dim=-1)
    divergence = torch.xlogy(teacher, teacher).sum() - (teacher * student).sum()
    return divergence, torch.as_tensor(len(row), device=path.device)


def _rows_read_right(path: Tensor, begins: Tensor, labels: Tensor, lengths: Tensor) -> Tensor:
    """Return bool `(B,)`: whether the tokens begun along each path are the label, in order."""
    rows = begins.sum(dim=1) == lengths
    for row in rows.nonzero()[:, 0].tolist():
        rows[row] = torch.equal(path[row][begins[row]], labels[row, : int(lengths[row])])
    return rows

"""Whether what a draft proposed has the form that verification takes, told from shapes without waiting for a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from ssd_infer.engine.laws import Law
from ssd_infer.engine.session import Proposal
from ssd_infer.errors import DraftError

_COUNTS = (torch.int64, torch.int32)


def check_proposal(proposal: Any, drafter: object, rows: int, vocab_size: int) -> None:
    """Raise DraftError naming the draft and the field of `proposal` that has another form than `rows` rows need."""
    wrong = _wrong(proposal, rows, vocab_size)
    if wrong is not None:
        field, rule, value = wrong
        raise DraftError(f"draft {_named(drafter)}: {field} must be {rule}, not {_form(value)}")


def check_counts(drafted: Sequence[int], drafter: object, width: int) -> None:
    """Raise DraftError where a row drafted fewer than no tokens `drafted[b]`, or more than the γ it proposed."""
    if min(drafted) < 0 or max(drafted) > width:
        raise DraftError(
            f"draft {_named(drafter)}: counts must lie between 0 and the {width} drafted tokens, not be {list(drafted)}"
        )


def _wrong(proposal: Any, rows: int, vocab_size: int) -> tuple[str, str, object] | None:
    """Return (field, rule, value) of the first field of another form; None where all are right."""
    if not isinstance(proposal, Proposal):
        return "what it proposes", "a Proposal", proposal
    tokens = cast(Any, proposal.tokens)
    if not _like(tokens, (rows, None), torch.int64):
        return "tokens", f"int64 of shape ({rows}, γ)", tokens
    if proposal.tree is not None:
        return None
    width = proposal.width
    counts, hidden, law = proposal.counts, proposal.hidden, cast(Any, proposal.law)
    if counts is not None and not _like(counts, (rows,), *_COUNTS):
        return "counts", f"integers of shape ({rows},)", counts
    if proposal.unverified is not None and not _like(proposal.unverified, (rows, width), torch.bool):
        return "unverified", f"bool of shape ({rows}, {width})", proposal.unverified
    if hidden is not None and not (_like(hidden, (rows, None, None)) and hidden.shape[1] - width in (0, 1)):
        return "hidden", f"of shape ({rows}, {width} or {width + 1}, d)", hidden
    if law is not None and not isinstance(law, Law):
        return "law", "a Law", law
    if law is not None and not _like(law.probs, (rows, width, vocab_size if law.ids is None else None)):
        last = vocab_size if law.ids is None else "K"
        return "law.probs", f"of shape ({rows}, {width}, {last})", law.probs
    return None


def _like(value: Any, shape: tuple[int | None, ...], *dtypes: torch.dtype) -> bool:
    """Tell whether `value` is a tensor of `shape`, in which None is any size, and of one of `dtypes`, if there are."""
    if not isinstance(value, Tensor) or value.dim() != len(shape) or (dtypes and value.dtype not in dtypes):
        return False
    return all(size is None or size == found for size, found in zip(shape, value.shape, strict=True))


def _named(drafter: object) -> str:
    info = getattr(drafter, "info", None)
    return repr(getattr(info, "name", type(drafter).__name__))


def _form(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"
    return f"a {type(value).__name__}"

"""Grouped attention for decoding without sparse drafts: same function, fewer bytes, from medium contexts on."""

from __future__ import annotations

from ssd_infer.engine.kernels.grouped import FullAttention
from ssd_infer.engine.kernels.layers import attention_view, unsupported_reason
from ssd_infer.engine.session import Session
from ssd_infer.engine.target import SelfMasking

_FROM_SLOTS, _FROM_CAPACITY = 4096, 512


def grouped_layers(session: Session) -> SelfMasking | None:
    """Return layers for prefill and verify passes of `session`; None where transformers' own attention is as fast.

    Its attention copies keys and values once a query head for every masked window of several tokens, and in low
    precision its grouped kernel for CPUs is slow even without a mask.
    """
    capacity = session.geometry.capacity
    if capacity < _FROM_CAPACITY or len(session.rows) * capacity < _FROM_SLOTS:
        return None
    target = session.target
    return None if unsupported_reason(target) else attention_view(target, FullAttention(session.cache))

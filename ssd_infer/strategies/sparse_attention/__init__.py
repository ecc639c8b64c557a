"""Sparse attention: the whole model drafts, reading a few slots of its own cache."""

from __future__ import annotations

from ssd_infer.strategies.info import Entry, StrategyInfo

SPARSE_ATTENTION = StrategyInfo("sparse_attention", "causal", "sparse_attention", order=40)
ENTRIES = (Entry(SPARSE_ATTENTION, "ssd_infer.strategies.sparse_attention.sparse_attention:SparseAttention"),)

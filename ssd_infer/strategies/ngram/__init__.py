"""N-gram lookup: copy what followed the same tokens earlier in the text."""

from __future__ import annotations

from ssd_infer.strategies.info import Entry, StrategyInfo

NGRAM = StrategyInfo("ngram", "causal", "ngram", in_all=False, listed=False, order=10)
ENTRIES = (Entry(NGRAM, "ssd_infer.strategies.ngram.ngram:Ngram"),)

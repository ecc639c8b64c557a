"""Skip sets: the model without some of its sublayers drafts, the whole model verifies."""

from __future__ import annotations

from ssd_infer.strategies.info import Entry, StrategyInfo

SKIP_SET = StrategyInfo("skip_set", "causal", "skip_layer", order=21)
SKIP_SET_BAYES = StrategyInfo(
    "skip_set+bayes", "causal", "skip_layer", in_all=False, extra="search", order=21
)
SWIFT = StrategyInfo("swift", "causal", "skip_layer", order=22)
ENTRIES = (
    Entry(SKIP_SET, "ssd_infer.strategies.skip_layers.skip_set:SkipSetDrafter"),
    Entry(SKIP_SET_BAYES, "ssd_infer.strategies.skip_layers.skip_set_bayes:SkipSetBayes"),
    Entry(SWIFT, "ssd_infer.strategies.skip_layers.swift:Swift"),
)

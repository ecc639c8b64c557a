"""Reduced experts: the model with fewer experts a token drafts, the model itself verifies."""

from __future__ import annotations

from ssd_infer.strategies.info import Entry, StrategyInfo

NEEDS = "it drafts with fewer experts per token, and this checkpoint has no routed experts"
REDUCED_EXPERTS = StrategyInfo("reduced_experts", "causal", "reduced_experts", needs=NEEDS, order=30)
ADAPTIVE = StrategyInfo("reduced_experts+adaptive", "causal", "reduced_experts", needs=NEEDS, order=30)
ENTRIES = (
    Entry(REDUCED_EXPERTS, "ssd_infer.strategies.reduced_experts.reduced_experts:ReducedExperts"),
    Entry(ADAPTIVE, "ssd_infer.strategies.reduced_experts.reduced_experts:AdaptiveExperts"),
)

"""Draft modules: small trained modules beside an unchanged model, after a shallow layer of it or after its last."""

from __future__ import annotations

from ssd_infer.strategies.info import Entry, StrategyInfo

EXIT_MODULE = StrategyInfo("exit_module", "causal", "draft_module", order=25)
MTP = StrategyInfo("mtp", "causal", "draft_module", order=25)
ENTRIES = (
    Entry(EXIT_MODULE, "ssd_infer.strategies.draft_module.exit_module:ExitModuleDraft"),
    Entry(MTP, "ssd_infer.strategies.draft_module.mtp:MtpDraft"),
)

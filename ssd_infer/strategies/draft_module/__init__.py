"""Draft modules: small trained modules beside an unchanged model, after a shallow layer of it or after its last."""

from __future__ import annotations

from ssd_infer.strategies.info import Entry, StrategyInfo

EXIT_MODULE = StrategyInfo("exit_module", "causal", "draft_module", order=25)
MTP = StrategyInfo("mtp", "causal", "draft_module", order=25)
HEADS = StrategyInfo("heads", "causal", "draft_module", order=25)
EXIT_MODULE_NGRAM = StrategyInfo("exit_module+ngram", "causal", "draft_module", order=25)
MTP_NGRAM = StrategyInfo("mtp+ngram", "causal", "draft_module", order=25)
HEADS_NGRAM = StrategyInfo("heads+ngram", "causal", "draft_module", order=25)
ENTRIES = (
    Entry(EXIT_MODULE, "ssd_infer.strategies.draft_module.exit_module:ExitModuleDraft"),
    Entry(MTP, "ssd_infer.strategies.draft_module.mtp:MtpDraft"),
    Entry(HEADS, "ssd_infer.strategies.draft_module.heads:HeadsDraft"),
    Entry(EXIT_MODULE_NGRAM, "ssd_infer.strategies.draft_module.module_ngram:ExitModuleNgram"),
    Entry(MTP_NGRAM, "ssd_infer.strategies.draft_module.module_ngram:MtpNgram"),
    Entry(HEADS_NGRAM, "ssd_infer.strategies.draft_module.module_ngram:HeadsNgram"),
)

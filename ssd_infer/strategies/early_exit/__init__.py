"""Early exit: the first layers and the shared head draft, the rest of the layers verifies."""

from __future__ import annotations

from ssd_infer.strategies.info import Entry, StrategyInfo

EARLY_EXIT = StrategyInfo("early_exit", "causal", "skip_layer", order=20)
EARLY_EXIT_DEL = StrategyInfo("early_exit+del", "causal", "skip_layer", order=20)
EARLY_EXIT_NGRAM = StrategyInfo("early_exit+ngram", "causal", "skip_layer", order=20)
ENTRIES = (
    Entry(EARLY_EXIT, "ssd_infer.strategies.early_exit.early_exit:EarlyExit"),
    Entry(EARLY_EXIT_DEL, "ssd_infer.strategies.early_exit.early_exit_del:EarlyExitDel"),
    Entry(EARLY_EXIT_NGRAM, "ssd_infer.strategies.early_exit.early_exit_ngram:EarlyExitNgram"),
)

"""CTC draft: the CTC head of a recogniser drafts, its decoder verifies."""

from __future__ import annotations

from ssd_infer.strategies.info import Entry, StrategyInfo

VARIANTS = ("lossless", "verify_only", "gate_only", "ctc_only", "same_wer", "best_wer")
NEEDS = "it drafts for speech recognisers with a CTC head, and this checkpoint takes text"
CTC_DRAFT = StrategyInfo("ctc_draft", "speech", "ctc_draft", VARIANTS, needs=NEEDS, order=60)
SASD = StrategyInfo("sasd", "speech", "reference", in_all=False, listed=False, needs=NEEDS, order=61)
RESCORING = StrategyInfo(
    "rescoring", "speech", "reference", in_all=False, listed=False, needs=NEEDS, order=61
)
ENTRIES = (
    Entry(CTC_DRAFT, "ssd_infer.strategies.ctc_draft.ctc_strategy:CTCDraft"),
    Entry(SASD, "ssd_infer.strategies.ctc_draft.ctc_strategy:CTCDraft"),
    Entry(RESCORING, "ssd_infer.strategies.ctc_draft.ctc_strategy:CTCDraft"),
)

"""Which ways to decode an evaluation measures, each a row: variants, settings chosen on dev, references."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ssd_infer.strategies.ctc_draft.ctc_params import (
    AUTO,
    REFERENCES,
    VARIANTS,
    CTCDraftParams,
    canonical,
    parse,
)
from ssd_infer.strategies.ctc_draft.gate_calibration import PAPER_INCREASE, Calibration, Point
from ssd_infer.strategies.speech_strategy import SpeechDraft

LOSSLESS = "ctc_draft:lossless"
CTC_ONLY = "ctc_draft:ctc_only"
SAME_WER = "ctc_draft:same_wer"
"""The two gates at the fastest setting whose word error rate on the dev set is not above plain decoding's."""
BEST_WER = "ctc_draft:best_wer"
"""The two gates at the setting of lowest word error rate on the dev set."""
Thresholds = Mapping[str, float | None]


def row_drafts(
    draft: str, given: Mapping[str, Any], vocab_size: int, found: Calibration
) -> list[SpeechDraft]:
    """Return the drafts that `draft=` asks for, then the references; `given` parameters go to the one asked for."""
    wanted = canonical(draft)
    given = dict(given) if wanted != "all" else {}
    paper = _thresholds(found.fastest(PAPER_INCREASE))
    made = [_draft(name, name, paper, given, vocab_size) for name in VARIANTS if wanted in ("all", name)]
    if wanted == "all":
        made.append(_draft(SAME_WER, "ctc_draft", _thresholds(found.fastest(0.0)), given, vocab_size))
        made.append(_draft(BEST_WER, "ctc_draft", _thresholds(found.most_accurate()), given, vocab_size))
    for name in REFERENCES:
        params = parse(name, given if name == wanted else {}, vocab_size)
        made.append(SpeechDraft(name, "peer", name, params, {}))
    return made


def relative(draft: SpeechDraft, vocab_size: int) -> dict[str, Any]:
    """Return θ_CTC in nats and ÷ ln V, and ln θ_LM ÷ ln V: only the relative figures compare across vocabularies."""
    params: CTCDraftParams = draft.params
    if params.accept == "greedy" or draft.name == CTC_ONLY:
        return {}
    scale, theta, low = math.log(vocab_size), params.theta_ctc, params.theta_lm
    return {
        "theta_ctc_nats": theta,
        "theta_ctc_relative": None if theta is None else theta / scale,
        "log_theta_lm_relative": math.log(low) / scale if 0 < low <= 1 else None,
    }


def _draft(
    name: str, method: str, thresholds: Thresholds, given: Mapping[str, Any], vocab_size: int
) -> SpeechDraft:
    chosen = {key: value for key, value in given.items() if value != AUTO}
    if "theta_ctc" in VARIANTS[method] or method == LOSSLESS:
        thresholds = {"theta_lm": thresholds["theta_lm"]} if "theta_lm" in thresholds else {}
    if "theta_lm" in VARIANTS[method]:
        thresholds = {key: value for key, value in thresholds.items() if key != "theta_lm"}
    elif (thresholds.get("theta_lm") or 0) > 1 and method == "ctc_draft:verify_only":
        thresholds = {}
    params = parse(method, {**thresholds, **chosen}, vocab_size)
    return SpeechDraft(name, "strategy", method, params, _shown(name, params), name == LOSSLESS)


def _thresholds(point: Point | None) -> Thresholds:
    """Return thresholds as parameters; none where no setting was allowed, so that the plain defaults hold."""
    return {} if point is None else {"theta_ctc": point.theta_ctc, "theta_lm": point.theta_lm}


def _shown(name: str, params: CTCDraftParams) -> dict[str, Any]:
    """Return the parameters that matter to this variant."""
    if name == CTC_ONLY:
        return {}
    names = ("resync", "max_verify_rounds") if params.accept == "greedy" else ("theta_ctc", "theta_lm")
    found = params.to_dict()
    return {key: _rounded(found[key]) for key in names}


def _rounded(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value

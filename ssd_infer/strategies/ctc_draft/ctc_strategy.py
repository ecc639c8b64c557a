"""The strategy `ctc_draft` as evaluations and `generate` know it: what it chooses, decodes, and adds to a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from ssd_infer.config.checks import Checks
from ssd_infer.families.speech.result import Decoded
from ssd_infer.families.speech.utterances import Utterance
from ssd_infer.report.table import Plot, Table
from ssd_infer.strategies.ctc_draft import CTC_DRAFT
from ssd_infer.strategies.ctc_draft.ctc_params import canonical, check_name, parse
from ssd_infer.strategies.ctc_draft.decode import decode
from ssd_infer.strategies.ctc_draft.gate_calibration import PAPER_INCREASE, Calibration, calibrate
from ssd_infer.strategies.ctc_draft.recognise import recognise
from ssd_infer.strategies.ctc_draft.recognition_costs import measure_costs
from ssd_infer.strategies.ctc_draft.row_drafts import CTC_ONLY, SAME_WER, relative, row_drafts
from ssd_infer.strategies.ctc_draft.saved_thresholds import save_thresholds
from ssd_infer.strategies.ctc_draft.speech_report import speech_tables
from ssd_infer.strategies.ctc_draft.transcription import generate
from ssd_infer.strategies.ctc_draft.wer_report import wer_plots
from ssd_infer.strategies.speech_strategy import Heard, SpeechDraft, SpeechStrategy


class CTCDraft(SpeechStrategy):
    """The CTC head's transcript is the draft, the decoder verifies it."""

    info = CTC_DRAFT

    @classmethod
    def generate(cls, *arguments: Any, **named: Any) -> NoReturn:
        """Refuse token prompts: a speech model takes audio."""
        generate(*arguments, **named)

    @classmethod
    def check(cls, draft: str, given: Mapping[str, Any], vocab_size: int | None) -> None:
        """Raise ConfigError when `draft=` or its parameters are wrong; without V only its name is checked."""
        if draft != "all" and vocab_size is None:
            checks = Checks()
            check_name(draft, checks)
            checks.finish()
        if vocab_size is not None:
            parse(canonical(draft), given if draft != "all" else {}, vocab_size)

    @classmethod
    def calibrate(cls, model: Any, processor: Any, dev: Sequence[Utterance]) -> Calibration:
        """Return the curve of word error rate and predicted speed over both thresholds."""
        return calibrate(model, processor, dev, measure_costs(model, processor, dev))

    @classmethod
    def notes(cls, chosen: Calibration) -> list[str]:
        """Say where the decoder is worse than the head, and where the dev set holds too few errors to choose by."""
        return [note for note in (chosen.undertrained, chosen.uncertain) if note]

    @classmethod
    def remember(cls, model: Any, folder: Path, chosen: Calibration) -> None:
        """Save the setting that loses no word beside the checkpoint, for every later `auto`; nothing without one."""
        point = chosen.fastest(0.0)
        if point is None:
            return
        more = {
            "chosen_for": "the fastest setting without a higher word error rate than plain decoding, on the dev set",
            "dev_utterances": chosen.utterances,
            "noise_db": list(chosen.noise_db),
            "plain_wer": chosen.plain_wer,
            "wer": point.wer,
            "torch": torch.__version__,
        }
        thresholds = {"theta_ctc": point.theta_ctc, "theta_lm": point.theta_lm}
        save_thresholds(model, folder, thresholds, more)

    @classmethod
    def drafts(
        cls, draft: str, given: Mapping[str, Any], vocab_size: int, chosen: Calibration
    ) -> list[SpeechDraft]:
        """Return the ways to decode that `draft=` asks an evaluation for, in the order of its report."""
        return row_drafts(draft, given, vocab_size, chosen)

    @classmethod
    def recognise(
        cls, model: Any, processor: Any, waves: Sequence[Tensor], draft: SpeechDraft | None
    ) -> Decoded:
        """Decode mono `waves` `(N_i,)`, features and encoder included, with a draft or plainly; phases are timed."""
        if draft is None:
            return recognise(model, processor, waves, None)[0]
        return recognise(model, processor, waves, draft.method, draft.params)[0]

    @classmethod
    def decode(cls, model: Any, encoded: Any, draft: SpeechDraft | None, most: int) -> list[list[int]]:
        """Return the tokens, at most `most`, of each encoded utterance, with a draft or plainly."""
        method, params = (None, None) if draft is None else (draft.method, draft.params)
        return [row.tokens for row in decode(model, encoded, method, params, most).rows]

    @classmethod
    def facts(cls, heard: Heard) -> dict[str, Any]:
        """Return relative thresholds; once, the curve they come from, and how well gate 1 tells right from wrong."""
        found: dict[str, Any] = {"speech": relative(heard.draft, heard.vocab_size)}
        if heard.first and heard.draft.name == cls.info.name:
            found["calibration"] = heard.chosen.to_dict() | {"increase": PAPER_INCREASE}
        if heard.first and heard.draft.name == CTC_ONLY:
            found["entropy"] = heard.doubt(heard.draft.params.entropy_agg)
        return found

    @classmethod
    def remarks(cls, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        """Say how fast the two gates are, and at which word error rate."""
        return [
            f"{row['name']} decodes {row['speed']['speedup']:.2f} times as fast at a word error rate of "
            f"{100 * row['extra']['speech']['wer']:.2f} %"
            for row in rows
            if row["name"] in (cls.info.name, SAME_WER) and row["status"] == "ok"
        ]

    @classmethod
    def tables(cls, row: Mapping[str, Any]) -> list[Table]:
        """Return error rates, routes and real-time factors of a decoder, plain ones included."""
        return speech_tables(row)

    @classmethod
    def plots(cls, row: Mapping[str, Any]) -> list[Plot]:
        """Draw word error rate against speed: what was measured, and where the row carries it the whole curve."""
        return wer_plots(row)

"""Show error rates, routes and real-time factors of a decoder, from its row of a report."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ssd_infer.report.format import number, percent, times
from ssd_infer.report.table import Table

Row = Mapping[str, Any]
HEAD = (
    "batch",
    "WER",
    "95 %",
    "CER",
    "RTFx",
    "speedup",
    "same as plain",
    "gate / verify / fallback",
    "passes",
    "encoder",
    "θ_CTC (÷ ln V)",
    "θ_LM",
)
NOTE = (
    "WER and CER: Σ edits ÷ Σ reference units, text normalised. RTFx: seconds of audio recognised a second. Speedup: "
    "time for the same audio, features and encoder included on both sides, against plain decoding at the same batch "
    "size. gate: the CTC transcript as it stands; verify: confirmed in one decoder pass; fallback: finished by the "
    "decoder; passes: of the decoder, per utterance; encoder: share of the time. θ_CTC in nats."
)

MEASURES = {
    "sequence": "−ln P (`sequence`)",
    "max": "largest entropy of a frame (`max`)",
    "p95": "95th percentile of the frames' entropies (`p95`)",
    "mean": "mean entropy of the frames (`mean`)",
}
"""`entropy_agg` → what gate 1 compares with its threshold."""


def speech_tables(row: Row) -> list[Table]:
    """Return what a baseline, peer or strategy row says of speech, one table each; none where it did not run."""
    if not (row.get("extra") or {}).get("speech"):
        return []
    return [Table("Speech", HEAD, (_cells(row),), NOTE), *_sets(row), *_doubt(row)]


def at_first_batch(row: Row) -> bool:
    """Tell whether a row was measured at the first batch size; the names of others end in theirs, such as `:b8`."""
    return re.search(r":b\d+$", row["name"]) is None


def _sets(row: Row) -> list[Table]:
    """Return WER (CER) by held-out set at the first batch size; nothing with fewer than two sets."""
    sets = row["extra"]["speech"]["sets"]
    if not at_first_batch(row) or len(sets) < 2:
        return []
    head = tuple(f"{entry['name']}, {entry['utterances']} utterances" for entry in sets)
    return [Table("Speech by held-out set", head, (tuple(map(_rates, sets)),), "WER (CER).")]


def _doubt(row: Row) -> list[Table]:
    """Say how well what gate 1 measures tells right transcripts from wrong ones, or nothing."""
    found = row["extra"].get("entropy")
    if not found or found["auroc"] is None:
        return []
    middle = [number(found[side][4]) for side in ("right", "wrong")]
    measure = MEASURES.get(found.get("measure"), "doubt, by a measure this report does not name,")
    caption = (
        f"Gate 1: the {measure} of a wrong CTC transcript exceeds that of a right one in {percent(found['auroc'])} of "
        f"pairs (AUROC); medians {middle[0]} nats right, {middle[1]} nats wrong."
    )
    head = ("AUROC", "median of right ones", "median of wrong ones")
    return [Table("Doubt", head, ((percent(found["auroc"]), *middle),), caption)]


def _speedup(row: Row) -> float | None:
    """Return the speedup of a strategy or peer row; 1 for plain decoding."""
    found: float | None = row["speed"]["speedup"] if "speed" in row else row.get("speedup", 1.0)
    return found


def _cells(row: Row) -> tuple[str, ...]:
    found, params = row["extra"]["speech"], row.get("params", {})
    routes = found["routes"]
    shares = [percent(routes.get(name, 0.0)) for name in ("gate", "verify", "fallback")]
    return (
        str(found["batch_size"]),
        percent(found["wer"], 2),
        _interval(found["wer_ci95"]),
        percent(found["cer"], 2),
        number(found["rtfx"], 0),
        times(_speedup(row)),
        percent(found["exact_match"]),
        "plain" if "plain" in routes else " / ".join(shares),
        number(found["decoder_forwards"], 1),
        percent(found["encoder_share"]),
        _thresholds(found),
        f"{params['theta_lm']:g}" if "theta_lm" in params else "–",
    )


def _rates(entry: dict[str, Any]) -> str:
    return f"{percent(entry['wer'], 2)} ({percent(entry['cer'], 2)})"


def _thresholds(found: dict[str, Any]) -> str:
    if found.get("theta_ctc_nats") is None:
        return "off" if "theta_ctc_nats" in found else "–"
    return f"{number(found['theta_ctc_nats'])} ({number(found['theta_ctc_relative'])})"


def _interval(bounds: list[float] | None) -> str:
    return "–" if not bounds else f"{100 * bounds[0]:.1f}–{100 * bounds[1]:.1f} %"

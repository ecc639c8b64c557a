"""The speech part of a report: error rates, routes and real-time factors of every decoder, from the JSON alone."""

from __future__ import annotations

from typing import Any

from ssd_infer.report.format import number, percent, times
from ssd_infer.report.rows import Report

SPEECH_HEAD = (
    "decoder",
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


def speech_table(report: Report) -> list[list[str]]:
    """Return the cells of the decoder table, plain decoding first; empty for a report without speech."""
    return [_cells(row, speedup) for row, speedup in _measured(report)]


def sets_table(report: Report) -> tuple[list[str], list[list[str]]]:
    """Return head and rows of WER (CER) by held-out set at the first batch size; no rows with fewer than two sets."""
    found = [(row["name"], row["extra"]["speech"]) for row, _ in _measured(report)]
    first = [
        (name, speech["sets"]) for name, speech in found if speech["batch_size"] == found[0][1]["batch_size"]
    ]
    names = [entry["name"] for entry in first[0][1]] if first else []
    if len(names) < 2:
        return [], []
    counts = [entry["utterances"] for entry in first[0][1]]
    head = ["decoder", *(f"{name}, {count} utterances" for name, count in zip(names, counts, strict=True))]
    return head, [[name, *(_rates(entry) for entry in sets)] for name, sets in first]


def doubt_line(report: Report) -> str:
    """Say how well what gate 1 measures tells right transcripts from wrong ones, or nothing."""
    found = next((row["extra"]["entropy"] for row in report["strategies"] if "entropy" in row["extra"]), None)
    if not found or found["auroc"] is None:
        return ""
    middle = [number(found[side][4]) for side in ("right", "wrong")]
    measure = MEASURES.get(found.get("measure"), "doubt, by a measure this report does not name,")
    return (
        f"Gate 1: the {measure} of a wrong CTC transcript exceeds that of a right one in {percent(found['auroc'])} of "
        f"pairs (AUROC); medians {middle[0]} nats right, {middle[1]} nats wrong."
    )


def _measured(report: Report) -> list[tuple[dict[str, Any], float | None]]:
    rows = [(row, 1.0) for row in report["baselines"]]
    rows += [(row, row["speed"]["speedup"]) for row in report["strategies"] if row["status"] == "ok"]
    rows += [(row, row["speedup"]) for row in report["peers"]]
    return [(row, speedup) for row, speedup in rows if row.get("extra", {}).get("speech")]


def _cells(row: dict[str, Any], speedup: float | None) -> list[str]:
    found, params = row["extra"]["speech"], row.get("params", {})
    routes = found["routes"]
    shares = [percent(routes.get(name, 0.0)) for name in ("gate", "verify", "fallback")]
    return [
        row["name"],
        str(found["batch_size"]),
        percent(found["wer"], 2),
        _interval(found["wer_ci95"]),
        percent(found["cer"], 2),
        number(found["rtfx"], 0),
        times(speedup),
        percent(found["exact_match"]),
        "plain" if "plain" in routes else " / ".join(shares),
        number(found["decoder_forwards"], 1),
        percent(found["encoder_share"]),
        _thresholds(found),
        f"{params['theta_lm']:g}" if "theta_lm" in params else "–",
    ]


def _rates(entry: dict[str, Any]) -> str:
    return f"{percent(entry['wer'], 2)} ({percent(entry['cer'], 2)})"


def _thresholds(found: dict[str, Any]) -> str:
    if found.get("theta_ctc_nats") is None:
        return "off" if "theta_ctc_nats" in found else "–"
    return f"{number(found['theta_ctc_nats'])} ({number(found['theta_ctc_relative'])})"


def _interval(bounds: list[float] | None) -> str:
    return "–" if not bounds else f"{100 * bounds[0]:.1f}–{100 * bounds[1]:.1f} %"

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
    "same tokens as plain",
    "gate / verify / fallback",
    "passes per utterance",
    "encoder share",
    "θ_CTC",
    "θ_CTC ÷ ln V",
    "θ_LM",
)
SETS_HEAD = ("decoder", "set", "utterances", "WER", "95 %", "CER", "RTFx")
NOTE = (
    "WER and CER: Σ edits ÷ Σ reference units, text normalised. RTFx: seconds of audio recognised a second. Speedup: "
    "time for the same audio, features and encoder included on both sides, against plain decoding at the same batch "
    "size. gate: the CTC transcript as it stands; verify: confirmed in one decoder pass; fallback: finished by the "
    "decoder. θ_CTC in nats."
)


def speech_table(report: Report) -> list[list[str]]:
    """Return the cells of the decoder table, plain decoding first; empty for a report without speech."""
    return [_cells(row, speedup) for row, speedup in _measured(report)]


def sets_table(report: Report) -> list[list[str]]:
    """Return error rates by held-out set; empty with fewer than two sets."""
    rows = [
        [row["name"], task["name"], *_by_set(task["extra"])]
        for row in report["strategies"]
        for task in row["per_task"]
        if "wer" in task.get("extra", {})
    ]
    return rows if len({cells[1] for cells in rows}) > 1 else []


def entropy_line(report: Report) -> str:
    """Say how well gate 1's entropy tells right transcripts from wrong ones, or nothing."""
    found = next((row["extra"]["entropy"] for row in report["strategies"] if "entropy" in row["extra"]), None)
    if not found or found["auroc"] is None:
        return ""
    middle = [number(found[side][4]) for side in ("right", "wrong")]
    return (
        f"Entropy of wrong CTC transcripts exceeds that of right ones in {percent(found['auroc'])} of pairs (AUROC); "
        f"medians {middle[0]} nats right, {middle[1]} nats wrong."
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
    theta = found.get("theta_ctc_nats")
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
        number(theta) if "theta_ctc_nats" in found else "–",
        number(found.get("theta_ctc_relative")),
        f"{params['theta_lm']:g}" if "theta_lm" in params else "–",
    ]


def _by_set(extra: dict[str, Any]) -> list[str]:
    return [
        str(extra["utterances"]),
        percent(extra["wer"], 2),
        _interval(extra["wer_ci95"]),
        percent(extra["cer"], 2),
        number(extra["rtfx"], 0),
    ]


def _interval(bounds: list[float] | None) -> str:
    return "–" if not bounds else f"{100 * bounds[0]:.1f}–{100 * bounds[1]:.1f} %"

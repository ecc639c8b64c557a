"""Thresholds found for a checkpoint, kept beside it and used wherever `auto` stands; valid for those weights only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from ssd_infer.atomic import write_text
from ssd_infer.checkpoint.content import loaded_from, weights_digest
from ssd_infer.jsonio import from_json
from ssd_infer.report.write import dump_json

FILE = "ssd_ctc_draft.json"
VERSION = 2
KEYS = ("theta_ctc", "theta_lm")


def save_thresholds(
    model: nn.Module, folder: str | Path, thresholds: dict[str, float | None], more: dict[str, Any]
) -> Path:
    """Write the thresholds (None: that gate is off), and `more` about their choice, into the checkpoint's folder."""
    path = Path(folder) / FILE
    record = {"version": VERSION, "weights": weights_digest(model), "thresholds": thresholds, **more}
    write_text(path, dump_json(record))
    return path


def thresholds_of(model: Any) -> dict[str, float | None]:
    """Return the thresholds saved where `model` was loaded from; none when there are none for exactly these weights."""
    folder = loaded_from(model.config)
    try:
        record = {} if folder is None else from_json((folder / FILE).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    if (
        not isinstance(record, dict)
        or record.get("version") != VERSION
        or not isinstance(record.get("thresholds"), dict)
    ):
        return {}
    if record.get("weights") != weights_digest(model):
        return {}
    found = {key: value for key, value in record["thresholds"].items() if key in KEYS}
    numbers = {key: float(value) for key, value in found.items() if isinstance(value, int | float)}
    return numbers | {key: None for key, value in found.items() if value is None and key == "theta_ctc"}

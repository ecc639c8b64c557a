"""Settings of `python -m ssd_infer.transcribe`."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import MISSING

from ssd_infer.config.checks import Checks
from ssd_infer.config.evaluation import DEVICES, DTYPES
from ssd_infer.strategies.ctc_draft.ctc_params import check_name


@dataclass(slots=True)
class TranscribeSettings:
    """What to transcribe with which checkpoint."""

    checkpoint: str = MISSING
    """Directory of a speech checkpoint."""
    audio: str = MISSING
    """An audio file, or a folder that is searched for them."""
    draft: str = "ctc_draft"
    """How the CTC head's transcript is used; `ctc_draft+lossless` gives what plain decoding gives."""
    draft_params: dict[str, Any] = field(default_factory=dict)
    """Parameters of that draft; what is left out is `auto`."""
    batch_size: int = 8
    """Parts of a recording decoded together."""
    segment_seconds: float | None = None
    """Longest part of a long recording; null means what the model was trained on."""
    dtype: str = "float32"
    """Precision of weights and arithmetic: float32, bfloat16, float16 or float64."""
    device: str = "auto"
    """auto, cpu, cuda or mps."""


def validate(settings: TranscribeSettings, checks: Checks) -> None:
    """Note every broken rule of `settings` in `checks`; loads no weights and imports no torch."""
    config = Path(settings.checkpoint).expanduser() / "config.json"
    rule = "must be a directory with a config.json"
    checks.require(config.is_file(), "checkpoint", rule, settings.checkpoint)
    rule = "must be an audio file or a folder of them"
    checks.require(os.path.exists(os.path.expanduser(settings.audio)), "audio", rule, settings.audio)  # noqa: PTH110, PTH111 - pathlib's raises for a name too long
    check_name(settings.draft, checks)
    checks.at_least("batch_size", settings.batch_size, 1)
    if settings.segment_seconds is not None:
        checks.at_least("segment_seconds", settings.segment_seconds, 0.5)
    checks.choice("dtype", settings.dtype, DTYPES)
    checks.choice("device", settings.device.partition(":")[0], DEVICES)

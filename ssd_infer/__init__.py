"""Decode with models that draft for themselves, and prove on every checkpoint what it gains.

import ssd_infer
model = ssd_infer.load("outputs/layerskip/demo/checkpoints/step-500")
out = ssd_infer.generate(model, [[1, 2, 3]], draft="early_exit", max_new_tokens=64)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ssd_infer.version import __version__

_EXPORTS = {
    "generate": "ssd_infer.api",
    "load": "ssd_infer.checkpoint.load",
    "register": "ssd_infer.strategies.registry",
    "register_family": "ssd_infer.checkpoint.families",
    "Loaded": "ssd_infer.checkpoint.load",
    "GenerateOutput": "ssd_infer.api",
    "TranscribeOutput": "ssd_infer.strategies.ctc_draft.transcription",
    "hf_generate": "ssd_infer.hf",
    "write_custom_generate": "ssd_infer.hf",
}
__all__ = [
    "GenerateOutput",
    "Loaded",
    "TranscribeOutput",
    "__version__",
    "generate",
    "hf_generate",
    "load",
    "register",
    "register_family",
    "transcribe",
    "write_custom_generate",
]

if TYPE_CHECKING:
    from ssd_infer.api import GenerateOutput, generate
    from ssd_infer.checkpoint.families import register_family
    from ssd_infer.checkpoint.load import Loaded, load
    from ssd_infer.hf import hf_generate, write_custom_generate
    from ssd_infer.strategies.ctc_draft.transcription import TranscribeOutput, transcribe
    from ssd_infer.strategies.registry import register


def __getattr__(name: str) -> Any:
    """Import on first use: reading a configuration must not cost an import of torch."""
    if name == "transcribe":  # a module that can be called: importing it binds the same name
        return import_module("ssd_infer.transcribe")
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_EXPORTS[name]), name)

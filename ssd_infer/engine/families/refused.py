"""Families that cannot be decoded here, and why; what is missing is said before anything runs."""

from __future__ import annotations

from ssd_infer.engine.families.base import CausalFamily

_RECURRENT = "its layers keep a recurrent state, which cannot be rolled back here yet"

RECURRENT = CausalFamily(
    name="recurrent",
    model_types=(
        "falcon_mamba",
        "jamba",
        "mamba",
        "recurrent_gemma",
        "rwkv",
        "xlstm",
        "zamba",
        "zamba2",
    ),
    missing=_RECURRENT,
)
GEMMA3N = CausalFamily(
    name="gemma3n",
    model_types=("gemma3n", "gemma3n_text"),
    missing="its layers pass on several predictions of every token at once, and only one is known here",
)

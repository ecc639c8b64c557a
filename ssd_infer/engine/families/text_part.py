"""The text part of models that take more than text; nothing but text can be in a prompt here."""

from __future__ import annotations

from ssd_infer.engine.families.base import CausalFamily, Parts

_TEXT = Parts(base=("model", "language_model"))

GEMMA3 = CausalFamily(name="gemma3", model_types=("gemma3",), parts=_TEXT, text_part=True)
MISTRAL3 = CausalFamily(name="mistral3", model_types=("mistral3",), parts=_TEXT, text_part=True)

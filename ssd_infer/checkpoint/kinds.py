"""Model kinds: which classes load a checkpoint.

Who decodes a kind is asked of the strategies (`strategies.registry.of_kind`), and how it is judged of the evaluation
(`evaluation.kind`), which stand above this floor.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

Kind = Literal["causal", "diffusion", "speech"]


@dataclass(frozen=True, slots=True)
class KindSpec:
    """How one kind of model is loaded."""

    model_types: tuple[str, ...]
    """Values of `config.model_type`; the kind without any takes every other model."""
    auto_model: str
    """The transformers Auto class that loads it."""
    auto_processor: str
    """The transformers Auto class of the tokenizer or processor saved beside it."""
    classes: str | None
    """Module that registers this toolkit's own model classes, imported when one arrives; None where transformers has
    them."""


KINDS: dict[Kind, KindSpec] = {
    "causal": KindSpec((), "AutoModelForCausalLM", "AutoTokenizer", None),
    "diffusion": KindSpec(
        ("ssd_masked_diffusion",),
        "AutoModelForMaskedLM",
        "AutoTokenizer",
        "ssd_infer.models.masked_diffusion",
    ),
    "speech": KindSpec(
        ("ssd_ctc_asr",), "AutoModelForSpeechSeq2Seq", "AutoProcessor", "ssd_infer.models.ctc_asr"
    ),
}


def kind_of(config: Any) -> Kind:
    """Return the kind of a transformers config, or of its plain dictionary."""
    found = config.get("model_type") if isinstance(config, dict) else getattr(config, "model_type", None)
    return next((kind for kind, spec in KINDS.items() if found in spec.model_types), "causal")


def kind_at(checkpoint: str | Path) -> Kind:
    """Return the kind of the checkpoint directory from its `config.json`, without importing torch.

    What cannot be read counts as causal: loading it says what is wrong.
    """
    try:
        config = json.loads((Path(checkpoint).expanduser() / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return "causal"
    return kind_of(config) if isinstance(config, dict) else "causal"


def register_classes(kind: Kind) -> None:
    """Make transformers' Auto classes know this toolkit's own models of `kind`."""
    module = KINDS[kind].classes
    if module is not None:
        import_module(module)

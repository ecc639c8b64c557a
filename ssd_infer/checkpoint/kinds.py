"""Model kinds: which classes load a checkpoint, and which modules decode and evaluate it.

A new kind is one line in `KINDS` and the modules it names; they are imported when a checkpoint of that kind arrives.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, cast

Kind = Literal["causal", "diffusion", "speech"]


@dataclass(frozen=True, slots=True)
class KindSpec:
    """What the toolkit needs to know about one kind of model; modules are dotted names, imported late."""

    model_types: tuple[str, ...]
    """Values of `config.model_type`; the kind without any takes every other model."""
    auto_model: str
    """The transformers Auto class that loads it."""
    auto_processor: str
    """The transformers Auto class of the tokenizer or processor saved beside it."""
    classes: str | None
    """Module that registers this toolkit's own model classes; None where transformers has them."""
    decoding: str
    """Module with `generate`, of the signature of `ssd_infer.generate`; it ends the streamer it is given."""
    evaluation: str
    """Module with `evaluate(settings, say)`, which writes the report and returns it."""


KINDS: dict[Kind, KindSpec] = {
    "causal": KindSpec(
        (), "AutoModelForCausalLM", "AutoTokenizer", None, "ssd_infer.api", "ssd_infer.evaluation.runner"
    ),
    "diffusion": KindSpec(
        ("ssd_masked_diffusion",),
        "AutoModelForMaskedLM",
        "AutoTokenizer",
        "ssd_infer.models.masked_diffusion",
        "ssd_infer.strategies.fewer_steps.generate",
        "ssd_infer.evaluation.diffusion.evaluate",
    ),
    "speech": KindSpec(
        ("ssd_ctc_asr",),
        "AutoModelForSpeechSeq2Seq",
        "AutoProcessor",
        "ssd_infer.models.ctc_asr",
        "ssd_infer.strategies.ctc_draft.transcription",
        "ssd_infer.evaluation.speech.evaluate",
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


def generator(kind: Kind) -> Callable[..., Any]:
    """Return the `generate` that decodes models of `kind`."""
    return cast("Callable[..., Any]", import_module(KINDS[kind].decoding).generate)


def evaluator(kind: Kind) -> Callable[..., dict[str, Any]]:
    """Return the `evaluate` that reports on checkpoints of `kind`."""
    return cast("Callable[..., dict[str, Any]]", import_module(KINDS[kind].evaluation).evaluate)

"""What an evaluation of a speech checkpoint holds on to: the model, its held-out sets, its clock."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch

from ssd_infer.checkpoint.load import Loaded, load_with
from ssd_infer.config.evaluation import EvalSettings
from ssd_infer.engine.devices import check_device
from ssd_infer.errors import CheckpointError, ConfigError, DataError, Problem
from ssd_infer.evaluation.bench import Say
from ssd_infer.families.speech.encoding import encode
from ssd_infer.families.speech.fast import fastest
from ssd_infer.families.speech.result import Timer
from ssd_infer.families.speech.scoring import normalise
from ssd_infer.families.speech.utterances import (
    DEV,
    FOLDER,
    Utterance,
    heldout_sets,
    read_manifest,
    read_utterances,
)
from ssd_infer.strategies.registry import of_kind
from ssd_infer.strategies.speech_strategy import SpeechStrategy
from ssd_infer.tuning.budget import Budget

MOST_DEV = 200


@dataclass(slots=True)
class Trial:
    """One evaluation's shared state."""

    settings: EvalSettings
    loaded: Loaded
    """The checkpoint."""
    model: Any
    """Its model, as it decodes fastest."""
    processor: Any
    sets: dict[str, list[Utterance]]
    """Measured sets by name."""
    dev: list[Utterance]
    budget: Budget
    say: Say
    notes: list[str] = field(default_factory=list)
    """Warnings collected on the way."""

    @property
    def device(self) -> torch.device:
        """Return where the model lives."""
        device: torch.device = self.model.device
        return device

    @property
    def dtype(self) -> torch.dtype:
        """Return the precision of the model."""
        dtype: torch.dtype = self.model.dtype
        return dtype

    @property
    def vocab_size(self) -> int:
        """Return V, blank included."""
        return int(self.model.config.vocab_size)


def strategy() -> type[SpeechStrategy]:
    """Return the strategy whose room decodes speech models."""
    return cast("type[SpeechStrategy]", of_kind("speech"))


def open_trial(settings: EvalSettings, say: Say) -> Trial:
    """Load the checkpoint and its held-out speech; raises before measuring when something is wrong with either."""
    strategy().check(settings.draft, settings.draft_params, None)
    check_device(settings.device)
    paths = _paths(settings)
    budget = Budget(settings.max_minutes)
    say("loading the checkpoint")
    loaded = load_with(settings.checkpoint, settings.loading(), settings.dtype, settings.device)
    model: Any = loaded.model
    if loaded.processor is None:
        raise CheckpointError(
            f"checkpoint: {settings.checkpoint!r} holds no processor; save it beside the weights"
        )
    strategy().check(settings.draft, settings.draft_params, int(model.config.vocab_size))
    say("reading held-out speech")
    trial = Trial(settings, loaded, fastest(model), loaded.processor, {}, [], budget, say)
    for name, path in paths.items():
        found = _utterances(trial, name, path)
        if name == DEV:
            trial.dev = found[:MOST_DEV]
        else:
            trial.sets[name] = found[: settings.samples]
    if not trial.dev:
        trial.dev = [item for items in trial.sets.values() for item in items][:MOST_DEV]
        trial.notes.append(
            "thresholds were chosen on the measured utterances themselves: there is no dev set"
        )
    _check_finite(trial)
    return trial


def prompts_sha256(items: list[Utterance]) -> str:
    """Hash samples and transcripts of a set."""
    digest = hashlib.sha256()
    for item in items:
        digest.update(item.samples.numpy().tobytes())
        digest.update(item.text.encode())
    return digest.hexdigest()


def _paths(settings: EvalSettings) -> dict[str, Path]:
    """Return the manifests to read, by set name; the dev set among them where there is one."""
    own = heldout_sets(settings.checkpoint)
    found: dict[str, Path] = {DEV: own[DEV]} if DEV in own else {}
    for task in settings.tasks:
        if task.startswith("file:"):
            path = Path(task.removeprefix("file:")).expanduser()
            found[path.parent.name if path.name == "manifest.jsonl" else path.stem] = path
        elif task == "auto":
            found |= own
        else:
            remedy = "give tasks=[auto] or tasks=[file:MANIFEST.jsonl]"
            raise ConfigError([Problem("tasks", "is no speech task", task, remedy)])
    if set(found) <= {DEV}:
        rule = f"needs held-out speech: {FOLDER}/NAME/manifest.jsonl in the checkpoint or its run"
        raise ConfigError([Problem("tasks", rule, settings.tasks, "give tasks=[file:MANIFEST.jsonl]")])
    return found


def _utterances(trial: Trial, name: str, path: Path) -> list[Utterance]:
    """Read one set; unusable audio is counted, and an error above the limit."""
    items, skipped = read_utterances(read_manifest(path), int(trial.processor.sampling_rate))
    if skipped:
        trial.notes.append(f"{name}: {len(skipped)} utterances cannot be used ({skipped[0]})")
    wordless = [item.name for item in items if not normalise(item.text)]
    if wordless:
        raise DataError(f"{path}: the transcript of {wordless[0]} holds no word")
    return items


@torch.inference_mode()
def _check_finite(trial: Trial) -> None:
    """Raise CheckpointError when the encoder computes NaN or infinity, or the CTC head nothing but blanks."""
    some = [item.samples for items in trial.sets.values() for item in items[:4]][:8]
    logits = [encode(trial.model, trial.processor, [wave], Timer()).ctc_logits for wave in some]
    if not all(bool(torch.isfinite(part).all()) for part in logits):
        raise CheckpointError(
            f"checkpoint: {trial.settings.checkpoint!r} computes values that are not finite; "
            "take an earlier step, or dtype=float32 if it was float16"
        )
    blank = trial.model.config.blank_token_id
    if all(bool((part.argmax(dim=-1) == blank).all()) for part in logits):
        trial.notes.append("the CTC head says nothing but blank: it has not learned yet, or it collapsed")

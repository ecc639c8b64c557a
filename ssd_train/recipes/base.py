"""What a recipe is: it builds data and model, turns a batch into sums, and knows nothing of the trainer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ssd_train import data
from ssd_train.config.schema import Root
from ssd_train.config.schema_own_text import SelfGeneratedConfig
from ssd_train.data.own_text.build import build_own_text
from ssd_train.models import build as models
from ssd_train.models import precision

Ratio = tuple[Tensor, Tensor]
"""(numerator, denominator); divided only after it was summed over micro-batches and ranks."""

Batch = Mapping[str, Tensor]

Collator = Callable[[list[Mapping[str, Any]]], dict[str, Tensor]]
"""From samples to a batch of tensors, samples along the first dimension."""


class TrainingData(Protocol):
    """What a run trains on; samples are mappings a recipe's collator understands."""

    @property
    def train(self) -> Any:
        """Return the training samples, a sized map-style dataset."""

    @property
    def validation(self) -> Any:
        """Return the held-out samples."""

    @property
    def processor(self) -> Any:
        """Return the tokenizer or processor that is saved beside the weights."""

    @property
    def sample_tokens(self) -> int:
        """Return the tokens (or frames) of a sample, for the rate of the progress line."""

    def describe(self) -> str:
        """Return one line a person can read."""


@dataclass(frozen=True, slots=True)
class StepContext:
    """Where in the run a micro-batch is; everything random or scheduled in a recipe follows from it."""

    global_step: int
    max_steps: int
    seed: int = 0
    sample_offset: int = 0
    """Samples of this optimizer step that came before this micro-batch on this rank."""
    step_samples: int = 0
    """Samples of the whole optimizer step on all ranks; 0 where nobody counted them."""
    distributed: bool = False
    detailed: bool = False
    """Whether the step is logged, so that costlier metrics are wanted."""


@dataclass(slots=True)
class StepOutput:
    """Sums of one micro-batch: the loss to differentiate and ratios to log."""

    loss_sum: Tensor
    denom: Tensor
    metrics: dict[str, Ratio] = field(default_factory=dict)
    loss_terms: dict[str, Ratio] = field(default_factory=dict)
    """Every term of the loss, unweighted."""


class Recipe(ABC):
    """A training method; one object a run."""

    name: str = ""
    run_samples: int = 0
    """Samples that all steps of the run take together, on all processes; 0 where nobody counted them."""

    def check(self, cfg: Root) -> None:
        """Check the model against the recipe before anything is written or loaded; raises SSDError."""
        models.check(cfg)

    def build_data(self, cfg: Root, run_dir: Path) -> TrainingData:
        """Return what the run trains on; every rank calls it."""
        return (
            build_own_text(cfg, run_dir)
            if isinstance(cfg.data, SelfGeneratedConfig)
            else data.build(cfg, run_dir)
        )

    def build_model(self, cfg: Root, data: TrainingData) -> nn.Module:
        """Return the model, in training precision, its random weights drawn from the run's seed alone."""
        return models.build(cfg.model, data.processor, seed=cfg.seed)

    def collator(self, data: TrainingData) -> Collator:
        """Return what makes a batch of samples."""
        return stack

    @abstractmethod
    def prepare(self, model: nn.Module) -> None:
        """Look at `model` once before training; raises UnsupportedModelError if the recipe cannot train it."""

    @abstractmethod
    def denominator(self, batch: Batch) -> Tensor:
        """Return the number of terms the loss of `batch` sums over, summed by the caller over the whole step."""

    @abstractmethod
    def step(self, model: nn.Module, inputs: Batch, context: StepContext) -> StepOutput:
        """Run one training micro-batch."""

    @abstractmethod
    def evaluate(self, model: nn.Module, inputs: Batch, context: StepContext) -> dict[str, Ratio]:
        """Measure one validation batch; must include `loss`."""

    def patience(self) -> int:
        """Return after how many validations without a higher predicted speedup training ends; 0 for never.

        A recipe that has one says it with every validation, as `speedup`.
        """
        return 0

    def bytes_beside(self, model: nn.Module) -> int:
        """Return the bytes that every process holds, whole, beside the parameters of `model`."""
        return 0

    def describe_weights(self, cfg: Root) -> str:
        """Say in a few words in which precision weights are kept and written."""
        return precision.describe(cfg)

    def ema_decay(self) -> float:
        """Return the decay of the weight average a checkpoint holds; 0 keeps none."""
        return 0.0

    def after_backward(self) -> None:
        """Undo what `step` left in place for the backward pass; called after it, or not at all."""

    def validated(self, metrics: dict[str, float], prefix: str) -> dict[str, float]:
        """Return what a validation found, on every rank the same; a recipe may judge it and add to it."""
        return metrics

    def save(self, model: nn.Module, state: Mapping[str, Tensor], directory: Path) -> bool:
        """Write a checkpoint's weights in files of the recipe's own; False leaves that to the trainer.

        `state` has whole tensors by the names of `model`, which may itself hold shards.
        """
        return False

    def load(self, model: nn.Module, directory: Path) -> bool:
        """Take the weights that training goes on from out of such files; False leaves that to the trainer."""
        return False

    def metadata(self) -> dict[str, Any]:
        """Return what a checkpoint should say about how it was made."""
        return {"name": self.name}


def stack(samples: list[Mapping[str, Any]]) -> dict[str, Tensor]:
    """Collate samples of equal length."""
    return {name: torch.stack([torch.as_tensor(sample[name]) for sample in samples]) for name in samples[0]}


def batch_rows(batch: Batch) -> int:
    """Return the number of samples in `batch`."""
    return len(next(iter(batch.values())))


def label_mask(batch: Batch) -> Tensor:
    """Return bool `(B, T-1)`: which next-token predictions count (labels that are not -100, tokens not padding)."""
    labels, attention = batch.get("labels"), batch.get("attention_mask")
    if labels is not None:
        return labels[:, 1:] != -100
    if attention is not None:
        return (attention[:, 1:] & attention[:, :-1]).bool()
    return torch.ones_like(batch["input_ids"][:, 1:], dtype=torch.bool)


def is_whole(batch: Batch) -> bool:
    """Return whether every prediction of `batch` counts, without looking at a tensor (packed text)."""
    return "labels" not in batch and "attention_mask" not in batch


def next_tokens(batch: Batch) -> Tensor:
    """Return `(B, T-1)`: the token each position has to predict."""
    labels = batch.get("labels")
    return batch["input_ids"][:, 1:] if labels is None else labels[:, 1:]

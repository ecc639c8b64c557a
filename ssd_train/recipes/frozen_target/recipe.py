"""A draft module beside a frozen target: one pass of the target a batch, and modules that learn from its states."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from ssd_infer.errors import ConfigError
from ssd_infer.models.draft_modules.hearing import Heard
from ssd_train.config.schema import HFModelConfig, Root
from ssd_train.losses.draft_rows import draft_loss, draft_matches
from ssd_train.losses.draft_teacher import Teacher, target_loss
from ssd_train.models import build as models
from ssd_train.models.precision import frozen_dtype
from ssd_train.recipes.base import (
    Batch,
    Ratio,
    Recipe,
    StepContext,
    StepOutput,
    TrainingData,
    label_mask,
    next_tokens,
)
from ssd_train.recipes.causal import TAU_GAMMA
from ssd_train.recipes.frozen_target import keeping
from ssd_train.recipes.frozen_target.forms import FORMS, Drafted, counted, gathered
from ssd_train.recipes.frozen_target.frozen import Frozen
from ssd_train.recipes.frozen_target.measures import judged, lengths, pooled, ratios, relative_cost
from ssd_train.recipes.frozen_target.rows import chosen_ids
from ssd_train.recipes.frozen_target.settings import FrozenTargetConfig
from ssd_train.recipes.frozen_target.trainee import Trainee, specs_of

logger = logging.getLogger(__name__)


class FrozenTargetRecipe(Recipe):
    """Train draft modules on states of a model that is only read."""

    name = "frozen_target"

    def __init__(self, config: FrozenTargetConfig) -> None:
        """Keep the settings."""
        self.config = config
        self.form = FORMS[config.form]
        self.kept: str | None = None
        """The module that a checkpoint is saved with: of several exits, the one predicted to be fastest by the last
        validation."""

    def check(self, cfg: Root) -> None:
        """Check that the target writes from left to right and has a position for every token of a block."""
        if problems := models.position_problems(cfg, models.check(cfg)):
            raise ConfigError(problems)

    def build_model(self, cfg: Root, data: TrainingData) -> nn.Module:
        """Load and freeze the target, choose rows, and build untrained modules from the run's seed alone."""
        assert isinstance(cfg.model, HFModelConfig)
        dtype = frozen_dtype(cfg.device, self.config.target_dtype)
        frozen = Frozen.load(cfg.model, dtype)
        frozen.to(torch.device(cfg.device))
        ids = chosen_ids(frozen, data, self.config.rows, cfg.run_dir)
        seen, whole = frozen.target.vocab_size if ids is None else len(ids), frozen.target.vocab_size
        count = sum(weight.numel() for weight in frozen.model.parameters())
        logger.info(
            "target: %s parameters in %s, frozen; drafts look at %d of %d tokens",
            f"{count:,}",
            dtype,
            seen,
            whole,
        )
        specs = specs_of(self.config, frozen, 0 if ids is None else len(ids))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(cfg.seed)
            return Trainee(frozen, specs, ids)

    def prepare(self, model: nn.Module) -> None:
        """Note what is trained."""
        self.trainee = cast(Trainee, model)
        self.costs = {name: relative_cost(self.trainee, name) for name in self.trainee.names}

    def denominator(self, batch: Batch) -> Tensor:
        """Return the number of tokens that count."""
        return label_mask(batch).sum()

    def step(self, model: nn.Module, inputs: Batch, context: StepContext) -> StepOutput:
        """Return the summed loss of all modules on one micro-batch."""
        row, token = counted(label_mask(inputs))
        heard = self._hear(inputs)
        drafts = self._drafts(heard, self.config.rollout)
        teacher = self._teacher(heard, row, token)
        own = gathered(drafts, self.trainee, row, token)
        total, sums = draft_loss(
            teacher, own, self.config.loss, self.config.chunk_tokens, matches=context.detailed
        )
        return StepOutput(total, self.denominator(inputs), ratios(drafts, sums, agreement=context.detailed))

    @torch.no_grad()
    def evaluate(self, model: nn.Module, inputs: Batch, context: StepContext) -> dict[str, Ratio]:
        """Measure every draft, the accept length it would lead to, and the target's own loss on this text."""
        row, token = counted(label_mask(inputs))
        heard = self._hear(inputs)
        drafts = self._drafts(heard, max(self.config.rollout, TAU_GAMMA))
        teacher, own = self._teacher(heard, row, token), gathered(drafts, self.trainee, row, token)
        matches, sums = draft_matches(teacher, own, self.config.loss, self.config.chunk_tokens)
        count = self.denominator(inputs)
        trained = [at for at, draft in enumerate(drafts) if draft.shift <= self.config.rollout]
        loss = pooled([sums[at] for at in trained], [drafts[at] for at in trained])
        return {
            "loss": (loss, count),
            "target_loss": (target_loss(teacher, next_tokens(inputs)[row, token]), count),
            **ratios(drafts, sums),
            **lengths(drafts, matches, row, token, chained=self.form.chained),
        }

    def validated(self, metrics: dict[str, float], prefix: str) -> dict[str, float]:
        """Judge the modules by what they are worth over what they cost, and say which one is kept."""
        plain = {name.removeprefix(prefix): value for name, value in metrics.items()}
        found = judged(plain, self.costs)
        measured = [name for name in self.costs if f"{name}_speedup" in found]
        if measured:
            self.kept = max(measured, key=lambda name: found[f"{name}_speedup"])
            found |= {"tau_sim": found[f"{self.kept}_tau"], "speedup": found[f"{self.kept}_speedup"]}
        kept = {name: value for name, value in plain.items() if "_tau_" not in name}
        return {f"{prefix}{name}": value for name, value in {**kept, **found}.items()}

    def patience(self) -> int:
        """Return the configured one."""
        return self.config.patience

    def bytes_beside(self, model: nn.Module) -> int:
        """Return the bytes of the frozen target."""
        return cast(Trainee, model).target.bytes

    def describe_weights(self, cfg: Root) -> str:
        """Say how draft modules are kept, and how the target is."""
        dtype = frozen_dtype(cfg.device, self.config.target_dtype)
        return f"draft modules trained and saved in float32; the target frozen in {dtype}, not saved"

    def save(self, model: nn.Module, state: Mapping[str, Tensor], directory: Path) -> bool:
        """Write draft modules and nothing of the target."""
        keeping.write(self.trainee, state, self.kept or self.trainee.names[0], directory)
        return True

    def load(self, model: nn.Module, directory: Path) -> bool:
        """Go on from the modules of a checkpoint."""
        keeping.read(self.trainee, directory)
        self.kept = keeping.kept_in(directory)
        return True

    def metadata(self) -> dict[str, Any]:
        """Return the recipe's name, its settings and what each module costs."""
        costs = getattr(self, "costs", {})
        return {"name": self.name, "settings": asdict(self.config), "relative_cost": costs}

    def _hear(self, inputs: Batch) -> Heard:
        frozen = self.trainee.target
        frozen.to(inputs["input_ids"].device)
        return frozen.hear(inputs, [*self.form.depths(self.trainee), frozen.target.num_layers])

    def _drafts(self, heard: Heard, steps: int) -> list[Drafted]:
        return self.form.drafts(self.trainee, heard, steps, self.config.step_decay)

    @torch.no_grad()
    def _teacher(self, heard: Heard, row: Tensor, token: Tensor) -> Teacher:
        """Return what the target knows of the counted tokens; nothing is computed of the others."""
        frozen = self.trainee.target
        states = heard.states[frozen.target.num_layers][row, token]
        return Teacher(frozen.target.normed(states), frozen.head, self.trainee.ids())

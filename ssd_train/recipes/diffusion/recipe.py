"""Masked diffusion: train a denoiser in any of its objectives, and train it to agree with its own drafts."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ssd_infer.errors import DataError
from ssd_infer.models.masked_diffusion import BLOCK_OBJECTIVES
from ssd_train.config.schema import Root
from ssd_train.losses import bd3lm
from ssd_train.losses.corruption import Corruption
from ssd_train.losses.draft_agreement import pair_divergence, verify_calls
from ssd_train.losses.llada import cut_length
from ssd_train.losses.masked import masked_nll
from ssd_train.recipes.base import (
    Batch,
    Collator,
    Ratio,
    Recipe,
    StepContext,
    StepOutput,
    TrainingData,
    batch_rows,
    stack,
)
from ssd_train.recipes.diffusion import model as diffusion_models
from ssd_train.recipes.diffusion.canvas import Canvas
from ssd_train.recipes.diffusion.noise import Place, stratified, uniform
from ssd_train.recipes.diffusion.objectives import corruptions, denominator, padding, supervised
from ssd_train.recipes.diffusion.settings import DiffusionConfig

VALIDATION_STRATA = 16
"""Validation samples among which mask rates are spread evenly."""
OWN_SEED = 1 << 20
"""Added to the seed for the masks of the model's own blocks, so that they differ from those of the data."""


class DiffusionRecipe(Recipe):
    """Train a masked-diffusion model; its saved configuration tells samplers blocks, order and shift."""

    name = "diffusion"

    def __init__(self, config: DiffusionConfig) -> None:
        """Keep the settings."""
        self.config = config

    def check(self, cfg: Root) -> None:
        """Check the model and the mask token against the recipe before anything is written; raises SSDError."""
        diffusion_models.check(cfg, self.config)

    def build_data(self, cfg: Root, run_dir: Path) -> TrainingData:
        """Return the run's text; its tokenizer has a mask token."""
        return diffusion_models.build_data(cfg, self.config, run_dir)

    def build_model(self, cfg: Root, data: TrainingData) -> nn.Module:
        """Return a denoiser from random weights, from a causal model, or from a denoiser."""
        return diffusion_models.build(cfg, self.config, data.processor)

    def collator(self, data: TrainingData) -> Collator:
        """Return the stack of equal blocks; `llada` cuts one sample in a hundred to a random length.

        It raises DataError for a text that holds the mask token, which no model could learn to predict.
        """
        make = _cut_some if self.config.objective == "llada" else stack
        return partial(_without_mask_token, make, data.processor)

    def prepare(self, model: nn.Module) -> None:
        """Find the head; raises UnsupportedModelError if there is none."""
        self.canvas = Canvas(model)  # type: ignore[arg-type]

    def denominator(self, batch: Batch) -> Tensor:
        """Return what the objective divides by: attended or supervised tokens, or examples."""
        return denominator(self.config, batch)

    def step(self, model: nn.Module, inputs: Batch, context: StepContext) -> StepOutput:
        """Return the summed loss of one micro-batch: the objective, and agreement with its own drafts."""
        if context.global_step < self.config.causal_share * context.max_steps:
            return self._causal(model, inputs)
        clean, canvas = inputs["input_ids"], self.canvas
        place = _place(context, batch_rows(inputs))
        noises = corruptions(self.config, inputs, place, self.copies)
        copies = [canvas.masked(clean, noise.masked) for noise in noises]
        own = self._own(model, inputs, place, context)
        if own is not None:
            copies.append(canvas.masked(*own))
        states = canvas.states(model, copies, clean, padding(inputs))
        out = StepOutput(self._denoising(states, noises, clean), self.denominator(inputs))
        out.loss_terms["denoising_loss"] = (out.loss_sum.detach(), out.denom)
        if self.config.agreement.pair_weight > 0:
            self._add_pairs(out, states, noises)
        if own is not None:
            self._add_own(out, states[-1], *own)
        return out

    def _causal(self, model: nn.Module, inputs: Batch) -> StepOutput:
        """Return the next-token loss of a micro-batch, which a run begins with as others begin from a checkpoint."""
        clean, learned = inputs["input_ids"], supervised(inputs).clone()
        learned[:, 0] = False
        states = self.canvas.causal_states(model, clean, padding(inputs))
        nll = self._nll(states, learned, clean)
        term = nll.detach().sum(), learned.sum()
        if self.config.objective == "llada_sft":  # divided by examples, so each example adds its mean
            nll = nll / learned.sum(1, keepdim=True).expand_as(learned)[learned]
        return StepOutput(nll.sum(), self.denominator(inputs), loss_terms={"causal_loss": term})

    def ema_decay(self) -> float:
        """Return the decay of the weight average."""
        return self.config.ema

    @property
    def copies(self) -> int:
        """Return the noised copies of the data in one pass."""
        if self.config.objective == "complementary_block":
            return 2
        return self.config.copies if self.config.objective in BLOCK_OBJECTIVES else 1

    def _nll(self, states: Tensor, masked: Tensor, targets: Tensor) -> Tensor:
        canvas, chunk = self.canvas, self.config.chunk_tokens
        return masked_nll(states[masked], canvas.head, targets[masked], canvas.mask_id, chunk_tokens=chunk)

    def _denoising(self, states: list[Tensor], noises: list[Corruption], clean: Tensor) -> Tensor:
        """Return Σ weight·(−log p) over masked tokens, averaged over the copies unless they complement each other."""
        total = torch.zeros((), dtype=states[0].dtype, device=clean.device)
        for hidden, noise in zip(states, noises, strict=False):
            nll = self._nll(hidden, noise.masked, clean)
            total = total + (nll * noise.weight[noise.masked].to(nll.dtype)).sum()
        return total if self.config.objective == "complementary_block" else total / len(noises)

    def _add_pairs(self, out: StepOutput, states: list[Tensor], noises: list[Corruption]) -> None:
        """Add the divergence between neighbouring copies where both are masked."""
        both = [a.masked & b.masked for a, b in itertools.pairwise(noises)]
        pairs = [
            pair_divergence(
                states[index][here],
                states[index + 1][here],
                self.canvas.head,
                self.canvas.mask_id,
                chunk_tokens=self.config.chunk_tokens,
            )
            for index, here in enumerate(both)
        ]
        count = torch.stack([here.sum() for here in both]).sum()
        divergence = torch.stack([pair.divergence for pair in pairs]).sum()
        out.loss_sum = out.loss_sum + self.config.agreement.pair_weight * divergence / len(pairs)
        out.loss_terms["pair_divergence"] = (divergence.detach(), count)
        out.metrics["pair_agreement"] = (torch.stack([pair.agreed for pair in pairs]).sum(), count)

    def _add_own(self, out: StepOutput, states: Tensor, blocks: Tensor, hidden: Tensor) -> None:
        """Add the cross-entropy on the model's own blocks."""
        nll = self._nll(states, hidden, blocks).sum()
        out.loss_sum = out.loss_sum + self.config.agreement.own_weight * nll
        out.loss_terms["own_block_loss"] = (nll.detach(), hidden.sum())

    def _own(
        self, model: nn.Module, inputs: Batch, place: Place, context: StepContext
    ) -> tuple[Tensor, Tensor] | None:
        """Return the model's own blocks and which of their tokens to hide, once that part of training has begun."""
        settings = self.config.agreement
        if settings.own_weight == 0 or context.global_step < settings.own_start * context.max_steps:
            return None
        clean = inputs["input_ids"]
        own, _, _ = self.canvas.own_blocks(model, clean)
        there = Place(place.seed + OWN_SEED, place.step, place.first, place.total)
        blocks = clean.shape[1] // self.config.block_size
        times = stratified(there, uniform(there, len(clean), blocks)).to(clean.device)
        return own, bd3lm.corrupt_left_to_right(times, clean.shape[1], supervised(inputs)).masked

    def evaluate(self, model: nn.Module, inputs: Batch, context: StepContext) -> dict[str, Ratio]:
        """Measure the bound and, for block models, left-to-right loss and simulated acceptance of own drafts."""
        clean, canvas = inputs["input_ids"], self.canvas
        place = Place(
            0, 0, context.sample_offset, VALIDATION_STRATA
        )  # by its place alone, so that it repeats
        config = _for_bound(self.config)
        noises = corruptions(config, inputs, place, self.copies)
        copies = [canvas.masked(clean, noise.masked) for noise in noises]
        states = canvas.states(model, copies, clean, padding(inputs))
        bound: Ratio = (self._denoising(states, noises, clean), denominator(config, inputs))
        metrics = {"loss": bound, "denoising_loss": bound}
        if canvas.config.block_causal and padding(inputs) is None:
            metrics |= self._left_to_right(model, clean, supervised(inputs))
            if canvas.config.order == "left_to_right":
                metrics["loss"] = metrics["left_to_right_loss"]
        return metrics

    def _left_to_right(self, model: nn.Module, clean: Tensor, tokens: Tensor) -> dict[str, Ratio]:
        size = self.config.block_size
        _, _, nll = self.canvas.own_blocks(model, clean, clean)
        _, predictions, _ = self.canvas.own_blocks(model, clean)
        calls = verify_calls(predictions, size - 1)
        count = torch.as_tensor(calls.numel() * size, device=clean.device)
        return {"left_to_right_loss": (nll[tokens].sum(), tokens.sum()), "tau_sim": (count, calls.sum())}

    def metadata(self) -> dict[str, Any]:
        """Return the recipe's name and settings."""
        return {"name": self.name, "settings": asdict(self.config)}


def _place(context: StepContext, rows: int) -> Place:
    """Return where a micro-batch of `rows` samples lies among all samples of the step."""
    return Place(context.seed, context.global_step, context.sample_offset, context.step_samples or rows)


def _for_bound(config: DiffusionConfig) -> DiffusionConfig:
    """Return settings whose noise gives the likelihood bound: any order, all mask rates."""
    if config.objective != "bd3lm":
        return config
    return replace(config, left_to_right=0.0, rate_low=config.eps, rate_high=1.0)


def _without_mask_token(
    make: Collator, tokenizer: Any, samples: list[Mapping[str, Any]]
) -> dict[str, Tensor]:
    """Return `make(samples)`; raise DataError where the text itself holds the mask token."""
    batch = make(samples)
    rows = (batch["input_ids"] == tokenizer.mask_token_id).any(1).nonzero()[:, 0].tolist()
    if rows:
        text = tokenizer.decode(batch["input_ids"][rows[0]])
        place = max(0, text.find(tokenizer.mask_token) - 30)
        raise DataError(
            f"recipe.mask_token: must not occur in the text (got {tokenizer.mask_token!r} in "
            f"{text[place : place + 80]!r}); name a reserved token, or take it out of the text"
        )
    return batch


def _cut_some(samples: list[Mapping[str, Any]], share: float = 0.01) -> dict[str, Tensor]:
    """Stack samples, and end one in a hundred early; which ones follows from their tokens, not from the moment."""
    batch = stack(samples)
    ids = batch["input_ids"]
    mask = torch.ones_like(ids)
    for row, tokens in enumerate(ids):
        numbers = torch.rand(2, generator=torch.Generator().manual_seed(int(tokens.sum()) + len(tokens)))
        if numbers[0] < share:
            mask[row, cut_length(float(numbers[1]), len(tokens)) :] = 0
    return batch if bool(mask.all()) else {**batch, "attention_mask": mask}

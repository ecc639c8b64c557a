"""From a batch and its place in the run to the noised copies an objective trains on."""

from __future__ import annotations

import torch
from torch import Tensor

from ssd_train.losses import bd3lm, complementary_block, llada, mdlm
from ssd_train.losses.corruption import Corruption, per_block
from ssd_train.recipes.base import Batch
from ssd_train.recipes.diffusion.noise import Place, stratified, uniform
from ssd_train.recipes.diffusion.settings import DiffusionConfig


def attended(batch: Batch) -> Tensor:
    """Return bool `(B, L)`: the tokens that are no padding."""
    mask = batch.get("attention_mask")
    return torch.ones_like(batch["input_ids"], dtype=torch.bool) if mask is None else mask.bool()


def padding(batch: Batch) -> Tensor | None:
    """Return the attended tokens of a padded batch, None for one without padding."""
    return attended(batch) if "attention_mask" in batch else None


def supervised(batch: Batch) -> Tensor:
    """Return bool `(B, L)`: the tokens that are learned: attended, and labelled where there are labels."""
    labels = batch.get("labels")
    return attended(batch) if labels is None else attended(batch) & (labels != -100)


def denominator(config: DiffusionConfig, batch: Batch) -> Tensor:
    """Return what the loss of `batch` is divided by, each objective's own."""
    tokens = supervised(batch)
    if config.objective == "llada_sft":
        return llada.denominator_answers(tokens)
    if config.objective == "complementary_block":
        return complementary_block.denominator(tokens)
    return mdlm.denominator(tokens)


def corruptions(config: DiffusionConfig, batch: Batch, place: Place, copies: int) -> list[Corruption]:
    """Return the noise of `copies` noised copies of a batch, the same however the step is split."""
    tokens = supervised(batch)
    rows, length = tokens.shape
    blocks = length // config.block_size if config.block_size else 1
    numbers = uniform(place, rows, copies * (2 * blocks + length)).view(rows, copies, -1).to(tokens.device)
    # All copies' times form one set of strata, so that copies of a block differ.
    times = stratified(place, numbers[..., :blocks].reshape(rows, -1).cpu()).view(rows, copies, blocks)
    times = times.to(tokens.device)
    if config.objective == "complementary_block":
        return list(complementary_block.corrupt(times[:, 0], numbers[:, 0, 2 * blocks :], tokens, config.eps))
    return [
        _one(
            config,
            times[:, copy],
            numbers[:, copy, blocks : 2 * blocks],
            numbers[:, copy, 2 * blocks :],
            tokens,
        )
        for copy in range(copies)
    ]


def _one(
    config: DiffusionConfig, times: Tensor, choices: Tensor, numbers: Tensor, tokens: Tensor
) -> Corruption:
    if config.objective == "mdlm":
        return mdlm.corrupt(times, numbers, tokens, config.eps)
    if config.objective == "llada":
        return llada.corrupt(times, numbers, tokens, config.eps)
    if config.objective == "llada_sft":
        return llada.corrupt_answers(times, numbers, tokens, config.eps)
    any_order = bd3lm.corrupt(times, numbers, tokens, low=config.rate_low, high=config.rate_high)
    if config.left_to_right == 0:
        return any_order
    ordered = bd3lm.corrupt_left_to_right(times, numbers.shape[1], tokens, later_weight=config.later_weight)
    chosen = per_block(choices, numbers.shape[1]) < config.left_to_right
    return Corruption(
        torch.where(chosen, ordered.masked, any_order.masked),
        torch.where(chosen, ordered.weight, any_order.weight),
    )

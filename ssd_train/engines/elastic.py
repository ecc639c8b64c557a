"""Continue a checkpoint with another number of processes, or another engine, where its files allow that."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from transformers import TrainingArguments

from ssd_infer.errors import ConfigError, Problem
from ssd_train.engines.kinds import ELASTIC

logger = logging.getLogger(__name__)

_COPIES = ("single", "ddp")
"""Engines whose optimizer state is one file, the same for any number of processes."""


def adapt(args: TrainingArguments, engine: str, record: Mapping[str, Any]) -> None:
    """Make `args` continue the checkpoint that `record` describes: each step still sees the same samples.

    Raises ConfigError where `engine` cannot read the checkpoint's optimizer state, or the batch cannot be kept.
    """
    wrote, then, now = record.get("engine", "single"), record.get("world_size", 1), args.world_size
    if _format(wrote) != _format(engine):
        rule = f"differs from the run's checkpoint, whose optimizer state {wrote} wrote"
        remedy = f"use engine={wrote}, or start another run from its weights: model=hf model.name=CHECKPOINT"
        raise ConfigError([Problem("engine", rule, engine, remedy)])
    if now == then:
        return
    if engine not in ELASTIC:
        rule = f"cannot continue on {now} processes what ran on {then}"
        raise ConfigError([Problem("engine", rule, engine, f"start {then} processes again")])
    _keep_batch(args, then)


def _keep_batch(args: TrainingArguments, then: int) -> None:
    """Give every step on `args.world_size` processes the samples it had on `then`."""
    now, size, accumulation = (
        args.world_size,
        args.per_device_train_batch_size,
        args.gradient_accumulation_steps,
    )
    whole = size * accumulation * then
    if whole % now:
        rule = f"is {whole} samples a step over all {then} processes, which {now} cannot share equally"
        raise ConfigError([Problem("train.batch_size", rule, size, f"start a number that divides {whole}")])
    share = whole // now
    new = max(part for part in range(1, min(size, share) + 1) if share % part == 0)
    args.per_device_train_batch_size, args.gradient_accumulation_steps = new, share // new
    args.per_device_eval_batch_size = max(1, args.per_device_eval_batch_size * then // now)
    logger.warning(
        "the run was on %d processes and is now on %d: each takes %d batches of %d a step, so that a step still sees "
        "%d samples",
        *(then, now, share // new, new, whole),
    )


def _format(engine: str) -> str:
    return "copies" if engine in _COPIES else engine

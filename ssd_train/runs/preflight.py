"""What a run will cost, said before it begins: parameters, memory on each process, tokens a step, checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from transformers import TrainingArguments

from ssd_train.config.engines import zero_stage
from ssd_train.config.schema import Root
from ssd_train.distributed.elastic import step_samples
from ssd_train.models.precision import saved_dtype

_MOMENTS = 2
"""Tensors of a parameter's size that AdamW keeps in float32; Muon keeps one, which this overstates."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Estimated costs of a run; bytes are those of one process, without activations."""

    parameters: int
    trained: int
    weights: float
    gradients: float
    optimizer: float
    beside: float
    """What the recipe holds beside the model, whole on every process, such as a model it only reads."""
    host: float
    """Bytes in host memory because of `engine.cpu_offload`."""
    samples_per_step: int
    tokens_per_step: int
    checkpoint: float
    """Bytes of one checkpoint on disk."""
    kept: int
    """Checkpoints on the disk at a time, at most."""


def costs(
    cfg: Root, args: TrainingArguments, model: nn.Module, sample_tokens: int, beside: float = 0.0
) -> Costs:
    """Estimate the costs of training `model` (its parameters not yet sharded) as `cfg` says, with bytes `beside` it.

    Memory as in ZeRO (Rajbhandari et al., 2020, section 3): 4 bytes a weight, 4 a gradient and 8 of AdamW in float32,
    and 2 more for the copy that a 16-bit engine computes with, each divided by the processes that share it.
    """
    parameters = list(model.parameters())
    count = sum(p.numel() for p in parameters)
    trained = sum(p.numel() for p in parameters if p.requires_grad)
    share = _shares(cfg.engine.name, args.world_size)
    copy = 2 * count if cfg.dtype != "float32" and cfg.engine.name not in ("single", "ddp") else 0
    weights = (4 * count + copy) / share["weights"]
    optimizer = 4 * _MOMENTS * trained / share["optimizer"]
    offloads_weights = cfg.engine.cpu_offload and cfg.engine.name in ("fsdp2", "deepspeed_zero3")
    host = (optimizer if cfg.engine.cpu_offload else 0) + (weights if offloads_weights else 0)
    samples = step_samples(args)
    saves = -(-cfg.train.max_steps // cfg.train.save_steps)
    return Costs(
        parameters=count,
        trained=trained,
        weights=0.0 if offloads_weights else weights,
        gradients=4 * trained / share["gradients"],
        optimizer=0.0 if cfg.engine.cpu_offload else optimizer,
        beside=beside,
        host=host,
        samples_per_step=samples,
        tokens_per_step=samples * sample_tokens,
        checkpoint=_checkpoint(cfg, count) + 4 * _MOMENTS * trained,
        kept=min(saves, cfg.train.keep_last + 1) if cfg.train.keep_last else saves,
    )


def summary(cfg: Root, args: TrainingArguments, found: Costs, weights: str) -> str:
    """Return `found` in a few lines; `weights` says in which precision they are kept and written."""
    train, world = cfg.train, args.world_size
    processes = f"{world} process{'es' if world > 1 else ''}"
    total = found.weights + found.gradients + found.optimizer + found.beside
    host = f", and {_size(found.host)} of host memory" if found.host else ""
    beside = f", frozen beside them {_size(found.beside)}" if found.beside else ""
    tokens = found.tokens_per_step * train.max_steps
    lines = [
        f"model       {found.parameters:,} parameters, {found.trained:,} trained",
        f"engine      {cfg.engine.name}, {processes}, {cfg.dtype}",
        f"weights     {weights}",
        f"memory      about {_size(total)} a process{host}, activations not counted: weights {_size(found.weights)}, "
        f"gradients {_size(found.gradients)}, optimizer {_size(found.optimizer)}{beside}",
        f"step        {found.samples_per_step:,} samples, {found.tokens_per_step:,} tokens: batch "
        f"{args.per_device_train_batch_size} × accumulation {args.gradient_accumulation_steps} × {processes}",
        f"run         {train.max_steps:,} steps, {tokens:,} tokens",
        f"checkpoint  about {_size(found.checkpoint)} every {train.save_steps:,} steps, at most {found.kept} kept: "
        f"{_size(found.checkpoint * found.kept)} of disk",
    ]
    return "\n".join(lines)


def _checkpoint(cfg: Root, count: int) -> int:
    """Return the bytes of a checkpoint's weights, with the float32 ones that training goes on from."""
    narrow = saved_dtype(cfg) != "float32"
    sharded = bool(zero_stage(cfg.engine.name)) or cfg.engine.name == "fsdp2"
    return count * ((2 if narrow else 4) + (4 if narrow or sharded else 0))


def _shares(engine: str, world: int) -> dict[str, int]:
    """Return over how many processes each part is divided."""
    stage = 3 if engine == "fsdp2" else zero_stage(engine)
    return {
        "optimizer": world if stage >= 1 else 1,
        "gradients": world if stage >= 2 else 1,
        "weights": world if stage >= 3 else 1,
    }


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError

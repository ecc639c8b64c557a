"""What an engine changes in transformers' Trainer: where a step runs, what is saved, and how a batch is dealt out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from safetensors import safe_open
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, RandomSampler, Sampler, Subset
from transformers import Trainer

from ssd_train.distributed.inside import run_inside

Out = TypeVar("Out")


class EngineTrainer(Trainer):
    """A Trainer whose steps, samples and checkpoints are the same under every engine and number of processes."""

    model: nn.Module
    model_wrapped: nn.Module
    deepspeed: Any
    eval_samples: int
    """Samples of a validation, over all processes."""

    def create_accelerator_and_postprocess(self) -> None:
        """Build the accelerator; accelerate offers FSDP to accelerators only, and it works on a CPU as well."""
        super().create_accelerator_and_postprocess()
        state = self.accelerator.state
        if self.args.fsdp and state.distributed_type == DistributedType.MULTI_CPU:
            plugin = FullyShardedDataParallelPlugin(**self.args.fsdp_plugin_args)
            if state.mixed_precision != "no":
                plugin.set_mixed_precision(state.mixed_precision)
            state.distributed_type, state.fsdp_plugin = DistributedType.FSDP, plugin
            self.is_fsdp_enabled = True
        if self.is_fsdp_enabled:
            state.fsdp_plugin.transformer_cls_names_to_wrap = _wrapped_classes(self.model)

    def inside(
        self, inputs: Mapping[str, Tensor], step: Callable[[Any, Mapping[str, Tensor]], tuple[Tensor, Out]]
    ) -> tuple[Tensor, Out]:
        """Run `step(model, inputs)` inside the forward of the wrapped model, where every parameter is whole."""
        model: nn.Module = self.accelerator.unwrap_model(self.model_wrapped)
        return run_inside(self.model_wrapped, model, inputs, step)

    def reshard(self) -> None:
        """Give back what a forward without a backward left whole (FSDP2 keeps its last group for the backward)."""
        for module in self.model.modules():
            if hasattr(module, "reshard"):
                module.reshard()  # type: ignore[operator]

    def sample_offset(self, before: int, rows: int) -> int:
        """Return the place in the optimizer step of the first of `rows` samples, `before` of which this rank has had.

        Micro-batches are dealt out in turn, so the places are those one process with the whole batch would give.
        """
        place: int = before * self.args.world_size + rows * self.args.process_index
        return place

    def validation_batches(self, dataset: Any) -> Iterator[tuple[Any, int, bool]]:
        """Yield (batch, place of its first sample, whether it counts), equally often on every rank.

        The samples are spread evenly over `dataset`, and none counts twice; a rank that ran out repeats one for
        nothing, because a sharded model needs all ranks in every forward.
        """
        size, world = self.args.per_device_eval_batch_size, self.args.world_size
        count = min(len(dataset), self.eval_samples)
        chosen = [index * len(dataset) // count for index in range(count)]
        parts = [chosen[start : start + size] for start in range(0, count, size)]
        for first in range(0, len(parts), world):
            number = first + self.args.process_index
            counts = number < len(parts)
            rows = parts[number] if counts else chosen[:1]
            loader = DataLoader(Subset(dataset, rows), batch_size=size, collate_fn=self.data_collator)
            yield next(iter(loader)), number * size, counts

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int] | None:
        """Shuffle, and end each epoch with its last whole optimizer step, whatever that step is made of."""
        dataset: Any = self.train_dataset if train_dataset is None else train_dataset
        args = self.args
        step = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
        whole = len(dataset) - len(dataset) % step
        return RandomSampler(dataset, num_samples=whole) if whole else super()._get_train_sampler(dataset)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write whole weights as `from_pretrained` reads them, from every engine."""
        if self.is_deepspeed_enabled and self.deepspeed.zero_optimization_stage() < 3:
            if (
                self.args.should_save
            ):  # the weights are whole; the base would clone them and lose the tie of the head
                self._save(output_dir)
            return
        if not self.is_fsdp_enabled:
            super().save_model(output_dir, _internal_call)
            return
        whole: dict[int, Tensor] = {}  # by identity, so that a tied head stays the embedding's own tensor
        state: dict[str, Tensor] = {}
        for name, part in self.model.state_dict(keep_vars=True).items():
            if id(part) not in whole:
                whole[id(part)] = _gathered(part, self.args.device, keep=self.args.should_save)
            state[name] = whole[id(part)]
        if self.args.should_save:
            self._save(output_dir, state_dict=state)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        """Load a checkpoint's weights, also where the file names them otherwise than the model.

        transformers writes experts one by one and keeps them in stacks; the base knows the names in the file only,
        would warn, and go on with stacks of random weights.
        """
        held: Any = self.model if model is None else model
        sharded = self.is_fsdp_enabled or self.is_deepspeed_enabled
        if sharded or _weight_names(Path(resume_from_checkpoint)) <= set(held.state_dict()):
            super()._load_from_checkpoint(resume_from_checkpoint, model)
            return
        whole = type(held).from_pretrained(resume_from_checkpoint, dtype=held.dtype)
        held.load_state_dict(whole.state_dict())

    def over_ranks(self, value: Tensor) -> Tensor:
        """Return the sum of `value` over ranks, so that all of them see what one of them has."""
        total: Tensor = self.accelerator.reduce(value.detach().float(), reduction="sum")
        return total

    def step_norm(self) -> Tensor | None:
        """Return the norm of the step's gradient over all ranks, None where the loss scaler looks at it."""
        if self.is_deepspeed_enabled:
            norm = self.deepspeed.get_global_grad_norm()
            return None if norm is None else torch.as_tensor(norm)
        if self.accelerator.scaler is not None:
            return None
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        if not gradients:
            return None
        total = torch.nn.utils.get_total_norm(gradients)
        return total.full_tensor() if isinstance(total, DTensor) else total


def _wrapped_classes(model: nn.Module) -> list[str]:
    """Return the layer classes that become a shard each: of those the model names, the ones it is built from.

    A model made of parts names the classes of its parts as well, also of layers it has replaced by its own.
    """
    named = getattr(model, "_no_split_modules", None) or ()
    present = {type(module).__name__ for module in model.modules()}
    return sorted(present.intersection(named))


def _weight_names(checkpoint: Path) -> set[str]:
    """Return the names under which a checkpoint's safetensors files hold weights."""
    names: set[str] = set()
    for path in checkpoint.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            names.update(file.keys())
    return names


def _gathered(part: Tensor, device: torch.device, *, keep: bool) -> Tensor:
    """Return a sharded tensor whole in host memory, empty on the ranks that only take part."""
    part = part.detach()
    if isinstance(part, DTensor):
        sharded = cast(
            "DTensor", part.to(device)
        )  # shards may lie in host memory, where no gather reaches them
        part = sharded.full_tensor()
    return part.cpu() if keep else torch.empty(0)


def rank_files(checkpoint: Path, suffix: str) -> list[Path]:
    """Return the files `RANK-suffix` of a checkpoint, ordered by rank; copies under other names are none."""
    found = {path.name: path for path in checkpoint.glob(f"*-{suffix}")}
    numbers = [name.removesuffix(f"-{suffix}") for name in found]
    ranks = sorted(int(number) for number in numbers if number.isascii() and number.isdigit())
    names = (f"{rank}-{suffix}" for rank in ranks)
    return [found[name] for name in dict.fromkeys(names) if name in found]

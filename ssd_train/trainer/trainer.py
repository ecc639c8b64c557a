"""The trainer: transformers' loop, with the loss of a recipe, exact accumulation and checkpoints that survive kills."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import PrinterCallback
from transformers.utils.logging import disable_progress_bar

from ssd_infer.checkpoint.manifest import RECORD, read_record
from ssd_infer.checkpoint.steps import TRAINER_STATE
from ssd_infer.engine.model_view import evaluating
from ssd_infer.errors import SSDError
from ssd_infer.jsonio import from_json, to_json
from ssd_train.distributed.elastic import step_samples
from ssd_train.distributed.engine_trainer import EngineTrainer, rank_files
from ssd_train.models import precision
from ssd_train.recipes.base import Batch, Collator, Ratio, Recipe, StepContext, StepOutput, batch_rows
from ssd_train.runs.checkpoints import CheckpointStore, require_space
from ssd_train.runs.metrics import MetricsFile, RatioSums
from ssd_train.runs.randomness import untouched_randomness
from ssd_train.trainer.ema import WeightAverage
from ssd_train.trainer.stopping import StopSignals

logger = logging.getLogger(__name__)

_SUMS = "ssd_pending_metrics.json"


@dataclass(slots=True)
class CheckpointExtras:
    """What a checkpoint holds besides weights and trainer state."""

    record: dict[str, Any] = field(default_factory=dict)
    """Goes into `ssd.json`."""
    files: dict[str, str] = field(default_factory=dict)
    """Text files by name."""
    dtype: str = "float32"
    """Precision of the saved weights."""


class SSDTrainer(EngineTrainer):
    """`transformers.Trainer` around a recipe; everything that is not the recipe's is left to the base class."""

    model: nn.Module
    # The recipe's sum is divided by the denominator of the whole accumulation window, so the base must not divide.
    loss_is_scaled_for_ga = True

    def __init__(
        self,
        model: nn.Module,
        args: TrainingArguments,
        recipe: Recipe,
        train_dataset: Dataset[Any],
        validation_dataset: Dataset[Any],
        processor: Any,
        collator: Collator,
        store: CheckpointStore,
        metrics_file: MetricsFile,
        extras: CheckpointExtras,
        eval_samples: int,
        optimizer: tuple[Any, dict[str, Any]] | None = None,
    ) -> None:
        """Wire the parts; nothing is written before `train`."""
        super().__init__(
            model=model,
            args=args,
            train_dataset=train_dataset,
            eval_dataset=validation_dataset,
            processing_class=processor,
            data_collator=collator,
            optimizer_cls_and_kwargs=optimizer,
        )
        self.recipe, self.store, self.metrics_file, self.extras = recipe, store, metrics_file, extras
        self.eval_samples = eval_samples
        self.on_checkpoint: Callable[[Path, int], None] | None = None
        self._sums = RatioSums()
        self._samples_seen = 0
        self._window_loss: Tensor | None = None
        self._evaluated: tuple[int, dict[str, float]] = (-1, {})
        self._clock = _Clock()
        decay = recipe.ema_decay()
        self.average = WeightAverage(model, decay) if decay > 0 else None
        disable_progress_bar()
        self.remove_callback(PrinterCallback)
        self.add_callback(_Flow(self))
        self.stop = StopSignals(self)
        self.add_callback(self.stop)

    # -- loss ---------------------------------------------------------------------------------------------------

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Tensor]:
        """Return the micro-batches of one optimizer step and the denominator of their loss over all ranks."""
        self._clock.start()
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        self._samples_seen, self._window_loss = 0, None
        counts = [self.recipe.denominator(batch) for batch in batches]
        local = (
            torch.stack(counts).sum().to(device)
            if counts
            else torch.zeros((), dtype=torch.long, device=device)
        )
        return batches, self._reduce(local)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Mapping[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Return the recipe's loss sum over the denominator of the step, scaled so that averaging ranks sums them."""
        rows = batch_rows(inputs)
        context = self._context(self.sample_offset(self._samples_seen, rows))

        def step(inside: Any, batch: Batch) -> tuple[Tensor, StepOutput]:
            out = self.recipe.step(inside, batch, context)
            return out.loss_sum, out

        loss_sum, out = self.inside(inputs, step)
        self._samples_seen += rows
        self._sums.add({"loss": (out.loss_sum, out.denom), **out.loss_terms, **out.metrics})
        whole = out.denom if num_items_in_batch is None else num_items_in_batch
        loss = loss_sum * (self.args.world_size / whole)
        if self.is_deepspeed_enabled:  # its backward steps as well
            self._refuse("loss", self.over_ranks(loss))
        return (loss, out) if return_outputs else loss

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Run forward and backward of one micro-batch and remember its loss for the check before the step."""
        try:
            loss = super().training_step(model, inputs, num_items_in_batch)
        finally:
            self.recipe.after_backward()
        self._window_loss = loss if self._window_loss is None else self._window_loss + loss
        return loss

    def check_finite(self) -> None:
        """Raise SSDError, before the optimizer moves any weight, unless loss and gradient are finite."""
        if self._window_loss is not None:
            self._refuse("loss", self._window_loss)
        self._refuse("gradient norm", self.step_norm())

    def _refuse(self, what: str, value: Tensor | None) -> None:
        if value is None or torch.isfinite(value).all():
            return
        step = self.state.global_step + 1
        late = self.is_deepspeed_enabled and what != "loss"
        outcome = (
            "spoilt the weights" if late else f"was refused and the weights are those of step {step - 1}"
        )
        raise SSDError(
            f"recipe {self.recipe.name}, step {step}: the {what} is {value.item()}; the step {outcome}; "
            "lower train.learning_rate, set train.max_grad_norm=1, or look for damaged samples; "
            "the last checkpoint is intact"
        )

    def _averaged(self) -> AbstractContextManager[None]:
        """Evaluate and save the averaged weights where the recipe keeps an average."""
        return nullcontext() if self.average is None else self.average.applied()

    def _context(self, sample_offset: int = 0) -> StepContext:
        step, args = self.state.global_step, self.args
        return StepContext(
            global_step=step,
            max_steps=self.state.max_steps,
            seed=self.args.seed,
            sample_offset=sample_offset,
            step_samples=step_samples(args),
            distributed=self.args.world_size > 1,
            detailed=(step + 1) % max(int(self.state.logging_steps), 1) == 0,
        )

    def _reduce(self, value: Tensor) -> Tensor:
        reduced: Tensor = self.accelerator.reduce(value, reduction="sum")
        return reduced

    # -- metrics ------------------------------------------------------------------------------------------------

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Put the exact ratios since the last line in place of the base's averages, and keep them in the file."""
        final = "train_runtime" in logs
        if "loss" in logs:
            logs |= self._sums.drain(self._reduce)
            logs |= self._clock.rate()
        super().log(logs, start_time)
        if self.is_world_process_zero() and not final:
            self.metrics_file.write(self.state.global_step, logs)

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Measure loss and exits on validation data; training state, mode and random numbers stay as they were."""
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        sums = RatioSums()
        with self._averaged(), _undisturbed(self.model):
            for batch, offset, counts in self.validation_batches(dataset):
                ratios = self._measure(batch, offset)
                sums.add(ratios if counts else _nothing(ratios))
        self.reshard()
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in sums.drain(self._reduce).items()}
        metrics = self.recipe.validated(metrics, f"{metric_key_prefix}_")
        self._evaluated = (self.state.global_step, metrics)
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def prediction_step(
        self, model: nn.Module, inputs: Any, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Return the validation loss of one batch; `evaluate` reports the exits as well."""
        with self._averaged(), _undisturbed(model):
            num, den = self._measure(inputs, 0)["loss"]
        return num / den, None, None

    def _measure(self, batch: Any, offset: int) -> dict[str, Ratio]:
        """Return what the recipe measures on one validation batch."""

        def step(inside: Any, inputs: Batch) -> tuple[Tensor, dict[str, Ratio]]:
            ratios = self.recipe.evaluate(inside, inputs, self._context(offset))
            return ratios["loss"][0], ratios

        return self.inside(self._prepare_inputs(batch), step)[1]

    # -- checkpoints --------------------------------------------------------------------------------------------

    def _save_checkpoint(self, model: nn.Module, trial: Any = None) -> None:
        """Save first, validate after, so that a failing validation never costs a checkpoint."""
        step = self.state.global_step
        main, wait = self.is_world_process_zero(), self.accelerator.wait_for_everyone
        path = self.store.save(step, self._write_checkpoint, main=main, wait=wait)
        if self.stop.stopping:
            return
        self.annotate(step)
        if self.on_checkpoint is not None and main and self.stop.heard is None:
            with self.stop.interruptible():
                self.on_checkpoint(path, step)
        wait()

    def annotate(self, step: int) -> None:
        """Add validation loss, agreement and simulated acceptance to the checkpoint of `step`."""
        metrics = self._evaluated[1] if self._evaluated[0] == step else self.evaluate()
        if self.is_world_process_zero():
            self.store.annotate(step, _summary(metrics))
        self.accelerator.wait_for_everyone()

    def _write_checkpoint(self, directory: Path) -> None:
        """Write this rank's files of a checkpoint."""
        if self.is_world_process_zero():
            require_space(directory, self._checkpoint_bytes())
        with self._averaged():
            self.save_model(str(directory), _internal_call=True)
        if self.average is not None and self.is_world_process_zero():
            self.average.save_training_weights(directory)
        if self._keeps_training_weights() and self.is_world_process_zero():
            precision.save_training_weights(self.model, directory)
        self._save_optimizer_and_scheduler(str(directory))
        self._save_scaler(str(directory))
        self._save_rng_state(str(directory))
        sums = to_json(self._sums.state())
        (directory / f"{self.args.process_index}-{_SUMS}").write_text(sums, encoding="utf-8")
        if not self.is_world_process_zero():
            return
        # A pickle of the arguments would be code to whoever loads it; `config.yaml` says the same in text.
        (directory / "training_args.bin").unlink(missing_ok=True)
        self._write_texts(directory)

    def rehearse_save(self) -> None:
        """Save all but weights and moments into a scratch folder of the run; raises CheckpointError when that fails."""
        self.store.rehearse(self._write_nothing)

    def _write_nothing(self, directory: Path) -> None:
        """Write what a checkpoint holds besides its large tensors, in whose place there is nothing."""
        require_space(directory, self._checkpoint_bytes())
        model: Any = self.model
        if not self.recipe.save(model, model.state_dict(), directory):
            model.save_pretrained(str(directory), state_dict={})
            if self.processing_class is not None:
                self.processing_class.save_pretrained(str(directory))
        torch.save({}, directory / "optimizer.pt")
        self._write_texts(directory)

    def _write_texts(self, directory: Path) -> None:
        """Write the trainer's state, the run's files and the record of a checkpoint."""
        state = to_json(dataclasses.asdict(self.state), indent=2, sort_keys=True)
        (directory / TRAINER_STATE).write_text(state + "\n", encoding="utf-8")
        for name, text in self.extras.files.items():
            (directory / name).write_text(text, encoding="utf-8")
        record = {
            **self.extras.record,
            "step": self.state.global_step,
            "world_size": self.args.world_size,
            "step_samples": step_samples(self.args),
        }
        (directory / RECORD).write_text(to_json(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        """Write weights as the base does, in the precision the run saves in, or as the recipe has them written."""
        if self._saved_by_recipe(output_dir, state_dict):
            return
        if self.extras.dtype == "float32" or not self.args.should_save:
            super()._save(output_dir, state_dict)
            return
        whole = self.model.state_dict() if state_dict is None else state_dict
        dtype = precision.DTYPES[self.extras.dtype]
        super()._save(output_dir, precision.narrowed(self.model, whole, dtype))
        assert output_dir is not None
        precision.note_dtype(Path(output_dir), self.extras.dtype)

    def _saved_by_recipe(self, output_dir: str | None, state_dict: dict[str, Tensor] | None) -> bool:
        """Let the recipe write the weights, on the process that writes; tell whether it has files of its own."""
        if not self.args.should_save or output_dir is None:
            return False
        whole = self.model.state_dict() if state_dict is None else state_dict
        return self.recipe.save(self.model, whole, Path(output_dir))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        """Load a checkpoint's weights, from files of the recipe's own where it has such."""
        sharded = self.is_fsdp_enabled or self.is_deepspeed_enabled
        if sharded or not self.recipe.load(self.model, Path(resume_from_checkpoint)):
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _keeps_training_weights(self) -> bool:
        """Tell whether a checkpoint needs float32 weights of its own: sharding engines keep theirs, an average too."""
        sharded = self.is_fsdp_enabled or self.is_deepspeed_enabled
        return self.extras.dtype != "float32" and not sharded and self.average is None

    def _checkpoint_bytes(self) -> int:
        """Estimate the size of a checkpoint: weights, two moments, and a sharding engine's own copy of the weights."""
        narrow = self.extras.dtype != "float32"
        copies = 4 if self.is_fsdp_enabled or self.is_deepspeed_enabled or narrow else 3
        sizes = (getattr(p, "ds_numel", p.numel()) * p.element_size() for p in self.model.parameters())
        return copies * sum(sizes)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Pass on the base's warnings, but not about a tied head, which is saved once as the embedding."""
        missing = [name for name in load_result.missing_keys if name not in self._tied_names()]
        if missing or load_result.unexpected_keys:
            super()._issue_warnings_after_load(load_result)

    def _tied_names(self) -> set[str]:
        kept = dict(self.model.named_parameters())
        return {name for name, _ in self.model.named_parameters(remove_duplicate=False) if name not in kept}

    def restore(self, checkpoint: Path) -> None:
        """Restore what the base class does not: sums of an unfinished log line, and a validation that was cut off."""
        if self.average is not None:
            self.average.restore(checkpoint)
        else:
            precision.restore_training_weights(self.model, checkpoint)
        rank, files = self.args.process_index, rank_files(checkpoint, _SUMS)
        elastic = len(files) != self.args.world_size
        for file in files if elastic else files[rank : rank + 1]:
            sums = from_json(file.read_text(encoding="utf-8"))
            if elastic and rank > 0:  # the first takes what all had; the others need the names
                sums = {name: [0.0, 0.0] for name in sums}
            self._sums.load(sums, self.args.device)
        if "tau_sim" not in read_record(checkpoint):
            self.annotate(self.state.global_step)


class _Flow(TrainerCallback):
    """Hooks of the base loop that the trainer needs for itself."""

    def __init__(self, trainer: SSDTrainer) -> None:
        """Serve `trainer`."""
        self.trainer = trainer

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Take the cadence from this command, not from the checkpoint, and restore what is ours."""
        state.compute_steps(args, state.max_steps)
        if state.global_step > 0:
            self.trainer.restore(self.trainer.store.path(state.global_step))

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Refuse a step that would destroy the weights."""
        self.trainer.check_finite()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Count the step's time, without validation and saving; the last step is always logged."""
        if self.trainer.average is not None:
            self.trainer.average.update(state.global_step)
        self.trainer._clock.stop()
        control.should_log |= state.global_step >= state.max_steps


class _Clock:
    """Seconds spent in optimizer steps since the last log line."""

    def __init__(self) -> None:
        """Start at zero."""
        self.seconds = 0.0
        self.steps = 0
        self._started: float | None = None

    def start(self) -> None:
        """Begin a step."""
        self._started = time.monotonic()

    def stop(self) -> None:
        """End the step begun last."""
        if self._started is not None:
            self.seconds += time.monotonic() - self._started
            self.steps += 1
            self._started = None

    def rate(self) -> dict[str, float]:
        """Return seconds per step since the last call."""
        rate = {"seconds_per_step": self.seconds / self.steps} if self.steps else {}
        self.seconds, self.steps = 0.0, 0
        return rate


@contextmanager
def _undisturbed(model: nn.Module) -> Iterator[None]:
    """Evaluate `model` without a trace: mode, gradients and random number generators are as before, come what may."""
    with evaluating(model), untouched_randomness(), torch.no_grad():
        yield


def _nothing(ratios: Mapping[str, Ratio]) -> dict[str, Ratio]:
    """Return `ratios` under the same names, counting nothing."""
    return {name: (torch.zeros_like(num), torch.zeros_like(den)) for name, (num, den) in ratios.items()}


def _summary(metrics: Mapping[str, float]) -> dict[str, Any]:
    """Return what a checkpoint's record says of a validation; its loss is the target's own."""
    agreement = {
        name.removeprefix("eval_exit_").removesuffix("_agreement"): value
        for name, value in metrics.items()
        if name.endswith("_agreement")
    }
    return {
        "validation_loss": metrics.get("eval_target_loss", metrics.get("eval_loss")),
        "tau_sim": metrics.get("eval_tau_sim"),
        "exit_agreement": agreement,
    }

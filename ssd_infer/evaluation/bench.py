"""Everything an evaluation holds on to: the loaded checkpoint, its prompts, its clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ssd_infer.checkpoint.kinds import kind_at
from ssd_infer.checkpoint.load import Loaded, load_with
from ssd_infer.config.evaluation import EvalSettings
from ssd_infer.corpus import (
    Task,
    build_tasks,
    calibrated_on_measured,
    calibration_prompts,
    check_prompt_files,
)
from ssd_infer.corpus.shift_text import FEWEST_TOKENS, SHIFT_TASK, shift_streams
from ssd_infer.engine.devices import check_device, input_device
from ssd_infer.engine.generation_rules import notes_of
from ssd_infer.engine.positions import beyond_positions
from ssd_infer.engine.target import Target
from ssd_infer.errors import CheckpointError
from ssd_infer.evaluation.measure import Unit
from ssd_infer.evaluation.strategies import check_draft, find_target
from ssd_infer.evaluation.vocabulary import check_ids
from ssd_infer.offload.offload import evaluation_model
from ssd_infer.tuning.budget import Budget

Say = Callable[[str], None]
CALIBRATION_PROMPTS, SHIFT_STREAMS = 6, 6


@dataclass(slots=True)
class EvalContext:
    """One evaluation's shared state."""

    settings: EvalSettings
    model: Any
    tokenizer: Any
    target: Target | str
    """The engine's view, or why there is none."""
    tasks: list[Task]
    units: list[Unit]
    calibration: list[list[int]]
    budget: Budget
    say: Say
    shift: list[list[list[int]]] = field(default_factory=list)
    """Streams whose text changes its kind; empty unless the task was asked for."""
    notes: list[str] = field(default_factory=list)
    """Warnings collected on the way."""

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return input_device(self.model)

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the model."""
        first: torch.nn.Parameter = next(self.model.parameters())
        return first.dtype


def open_context(settings: EvalSettings, say: Say) -> EvalContext:
    """Load the checkpoint and cut the prompts; raises before any measurement when something is wrong with either."""
    check_draft(settings.draft, settings.draft_params, kind_at(settings.checkpoint))
    check_device(settings.device)
    check_prompt_files(settings.tasks)
    budget = Budget(settings.max_minutes)
    say("loading the checkpoint")
    loaded = _load(settings)
    model: nn.Module = loaded.model
    say("choosing prompts")
    tasks = build_tasks(
        [name for name in settings.tasks if name != SHIFT_TASK],
        loaded.tokenizer,
        settings.samples,
        settings.prompt_tokens,
        settings.seed,
    )
    calibration = calibration_prompts(tasks, loaded.tokenizer, CALIBRATION_PROMPTS, settings.prompt_tokens)
    _check_vocabulary(model, tasks, calibration)
    _check_finite(model, tasks[0].prompts[0], settings.checkpoint)
    bench = EvalContext(
        settings,
        model,
        loaded.tokenizer,
        find_target(model),
        tasks,
        split_units(tasks, settings.batch_size),
        calibration,
        budget,
        say,
        _shift(settings, loaded.tokenizer, model),
    )
    bench.notes += loaded.notes
    bench.notes += notes_of(model, {bool(t) for t in settings.temperatures})
    bench.notes += dict.fromkeys(note for task in tasks for note in task.notes)
    said = calibrated_on_measured(tasks), beyond_positions(model, _longest(bench))
    bench.notes += [note for note in said if note is not None]
    return bench


def _longest(bench: EvalContext) -> int:
    """Return the tokens of the longest text this run decodes, prompt included."""
    new = bench.settings.max_new_tokens
    prompts = [len(prompt) + new for task in bench.tasks for prompt in task.prompts]
    turns = [sum(len(turn) + max(new, FEWEST_TOKENS) for turn in stream) for stream in bench.shift]
    return max([*prompts, *turns, *(context + new for context in bench.settings.contexts)])


def _shift(settings: EvalSettings, tokenizer: Any, model: Any) -> list[list[list[int]]]:
    """Return the streams of task_shift, as many as a task has prompts but for `SHIFT_STREAMS` at most."""
    if SHIFT_TASK not in settings.tasks:
        return []
    count = min(SHIFT_STREAMS, settings.samples)
    streams = shift_streams(tokenizer, count, settings.prompt_tokens, settings.seed)
    for stream in streams:
        check_ids(SHIFT_TASK, stream, vocab_size(model))
    return streams


def _load(settings: EvalSettings) -> Loaded:
    """Load the checkpoint, its experts on disk if only a share of them may be in memory."""
    if not settings.expert_budget:
        return load_with(settings.checkpoint, settings.loading(), settings.dtype, settings.device)
    device = None if settings.device == "auto" else settings.device
    return evaluation_model(settings.checkpoint, settings.expert_budget, settings.dtype, device)


def vocab_size(model: Any) -> int:
    """Return how many token ids the model knows."""
    return int(model.config.get_text_config().vocab_size)


def _check_vocabulary(model: Any, tasks: list[Task], calibration: list[list[int]]) -> None:
    for task in tasks:
        check_ids(task.name, task.prompts, vocab_size(model))
    check_ids("calibration", calibration, vocab_size(model))


@torch.inference_mode()
def _check_finite(model: Any, prompt: list[int], checkpoint: str) -> None:
    """Raise CheckpointError when the model computes NaN or infinity: a diverged training, or too small a dtype."""
    logits = model(input_ids=torch.tensor([prompt], device=input_device(model))).logits
    if not bool(torch.isfinite(logits).all()):
        raise CheckpointError(
            f"checkpoint: {checkpoint!r} computes values that are not finite; "
            "take an earlier step, or dtype=float32 if it was float16"
        )


def split_units(tasks: list[Task], batch_size: int) -> list[Unit]:
    """Cut each task into batches and take turns between tasks, so that an early stop leaves them balanced."""
    queues = [
        [
            (task.name, task.prompts[start : start + batch_size])
            for start in range(0, len(task.prompts), batch_size)
        ]
        for task in tasks
    ]
    longest = max(map(len, queues))
    ordered = [queue[turn] for turn in range(longest) for queue in queues if turn < len(queue)]
    return [Unit(index, name, prompts) for index, (name, prompts) in enumerate(ordered)]


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Use `count` CPU threads inside the block; 0 changes nothing."""
    before = torch.get_num_threads()
    try:
        if count:
            torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(before)

"""Stop when validation no longer finds faster drafts, by the history that checkpoints keep: a resumed run agrees."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ssd_infer.checkpoint.steps import TRAINER_STATE
from ssd_infer.jsonio import from_json

logger = logging.getLogger(__name__)

METRIC = "eval_speedup"
"""Predicted speedup on held-out text: unlike an accept length, it compares drafts of different costs."""


class EarlyStop(TrainerCallback):
    """End training, saved, after `patience` validations in a row without a higher predicted speedup; 0 never does."""

    def __init__(self, patience: int) -> None:
        """Keep the patience."""
        self.patience = patience

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Save and stop where the last validations were no better; every process sees the same figures."""
        if not is_over(state.log_history, self.patience) or state.global_step >= state.max_steps:
            return
        control.should_save = control.should_training_stop = True
        if state.is_world_process_zero:
            step, speedup = best_of(state.log_history)
            logger.warning(
                "stopped after step %d: no higher predicted speedup than %.3f of step %d in %d validations",
                *(state.global_step, speedup, step, self.patience),
            )


def is_over(history: Sequence[Mapping[str, Any]], patience: int) -> bool:
    """Tell whether the last `patience` validations of a run found nothing better than one before them."""
    found = _measured(history)
    if patience <= 0 or not found:
        return False
    best, _ = best_of(history)
    return sum(step > best for step in found) >= patience


def best_of(history: Sequence[Mapping[str, Any]]) -> tuple[int, float]:
    """Return step and predicted speedup of the best validation, the first of equal ones."""
    found = _measured(history)
    step = max(found, key=lambda step: (found[step], -step))
    return step, found[step]


def was_over(checkpoint: Path, patience: int) -> bool:
    """Tell whether the run that left `checkpoint` had stopped for this reason."""
    state = from_json((checkpoint / TRAINER_STATE).read_text(encoding="utf-8"))
    return is_over(state.get("log_history", []), patience)


def _measured(history: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    return {int(line["step"]): float(line[METRIC]) for line in history if METRIC in line}

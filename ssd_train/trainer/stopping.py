"""Stop when the scheduler or the clock says so: after the step in progress, with a checkpoint."""

from __future__ import annotations

import logging
import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Self

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ssd_infer.atomic import write_text
from ssd_infer.jsonio import to_json

logger = logging.getLogger(__name__)

STOPPED = "stopped.json"
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class StopSignals(TrainerCallback):
    """Listen for SIGTERM and SIGUSR1 while training; whichever rank hears one, all ranks stop after the same step."""

    def __init__(self, trainer: Any) -> None:
        """Serve `trainer`; signals are heard inside the context."""
        self.trainer = trainer
        self.heard: str | None = None
        self.stopping = False
        self._before: dict[signal.Signals, Any] = {}
        self._idle = False

    def __enter__(self) -> Self:
        """Listen from here on; before, a signal ends the process, which has nothing to lose yet."""
        if threading.current_thread() is threading.main_thread():  # Python lets no other thread listen
            self._before = {number: signal.signal(number, self._hear) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        """Give the signals back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Save and stop when any rank has heard a signal; the validation is made up for after the resume."""
        if self.stopping or not self._any_rank_heard(args):
            return
        self.stopping = True
        control.should_save = control.should_training_stop = True
        control.should_evaluate = False

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let a signal cut short what can be done again later, such as a report on a checkpoint already saved."""
        self._idle = True
        try:
            yield
        except _CutShort:
            pass
        finally:
            self._idle = False

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        self.heard = signal.Signals(number).name
        if self._idle:
            raise _CutShort

    def _any_rank_heard(self, args: TrainingArguments) -> bool:
        return on_any_rank(self.trainer, args, self.heard is not None)


class TimeLimit(TrainerCallback):
    """End training after so many minutes of this start; all ranks stop when the clock of any has run out.

    The schedule stays that of `train.max_steps`: what is left of it is done when the same command starts again.
    """

    def __init__(self, trainer: Any, minutes: float) -> None:
        """Serve `trainer`; 0 minutes set no limit."""
        self.trainer, self.seconds = trainer, 60 * minutes
        self._ends = math.inf

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Count from here on."""
        if self.seconds > 0:
            self._ends = time.monotonic() + self.seconds

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Save and stop when the time is over before the last step; logs stay where they would have been."""
        if math.isinf(self._ends) or state.global_step >= state.max_steps:
            return
        if not on_any_rank(self.trainer, args, time.monotonic() >= self._ends):
            return
        control.should_save = control.should_training_stop = True
        if state.is_world_process_zero:
            logger.warning(
                "train.max_minutes=%g ended training after step %d of %d, which is saved; its learning rate and "
                "curricula are those of the longer run, and the same command goes on from there",
                self.seconds / 60,
                state.global_step,
                state.max_steps,
            )


def on_any_rank(trainer: Any, args: TrainingArguments, here: bool) -> bool:
    """Tell whether `here` is true on any rank; every rank must ask."""
    if args.world_size == 1:
        return here
    found = torch.tensor(float(here), device=args.device)
    return bool(trainer.accelerator.reduce(found, reduction="sum").item() > 0)


def note(run_dir: Path, stop: StopSignals, step: int) -> None:
    """Write `stopped.json` and say how to go on if a signal ended the run before all was done, else remove it.

    A batch script requeues its job when the file is there.
    """
    file = run_dir / STOPPED
    if stop.heard is None and not stop.stopping:
        file.unlink(missing_ok=True)
        return
    why = stop.heard or "a signal on another process"
    write_text(file, to_json({"step": step, "signal": why}) + "\n")
    print(f"stopped by {why} after step {step}, which is saved; the same command goes on from there")


class _CutShort(BaseException):
    """Raised by the handler in idle work; no `except Exception` on the way may keep it."""

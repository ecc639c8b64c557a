"""Stop when the scheduler says so: a signal ends the run after the step in progress, with a checkpoint."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Self

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ssd_infer.atomic import write_text
from ssd_infer.jsonio import to_json

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
        if args.world_size == 1:
            return self.heard is not None
        heard = torch.tensor(float(self.heard is not None), device=args.device)
        return bool(self.trainer.accelerator.reduce(heard, reduction="sum").item() > 0)


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

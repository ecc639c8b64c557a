"""What a person sees of a run, in a terminal and in a log file."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console
from transformers import TrainerControl, TrainerState, TrainingArguments

from ssd_train.trainer import progress
from ssd_train.trainer.progress import ProgressCallback, exit_losses, spread


class Clock:
    """Time that passes only when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "monotonic", clock)
    return clock


def console(terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=140, color_system=None)


def drive(
    callback: ProgressCallback, clock: Clock, steps: int, seconds: float, **options: Any
) -> TrainerState:
    """Let `callback` see `steps` steps of `seconds` each, a log every second step."""
    state = TrainerState(max_steps=steps, **options)
    args: Any = TrainingArguments.__new__(TrainingArguments)
    control = TrainerControl()
    callback.on_train_begin(args, state, control)
    for step in range(1, steps + 1):
        clock.now += seconds
        state.global_step = step
        callback.on_step_end(args, state, control)
        if step % 2 == 0:
            logs = {"loss": 5.0 - step / 10, "exit_2_loss": 6.0, "exit_2_agreement": 0.3, "epoch": 1.0}
            callback.on_log(args, state, control, logs=logs)
    callback.on_train_end(args, state, control)
    return state


def test_the_line_says_step_loss_exits_speed_and_time_left(clock: Clock) -> None:
    callback = ProgressCallback(1000, console(terminal=False))
    drive(callback, clock, 10, 0.5, is_world_process_zero=True)
    assert callback.line(10, 130) == "step 10/130 · loss 4.000 · exits 2:6.00 · 2,000 tokens/s · 1:00 left"


def test_without_a_terminal_lines_are_plain_and_seldom(clock: Clock) -> None:
    out = console(terminal=False)
    drive(ProgressCallback(1000, out), clock, 40, 1.0, is_world_process_zero=True)
    text = out.file.getvalue()  # type: ignore[attr-defined]
    lines = [line for line in text.splitlines() if line.startswith("step ")]
    assert [line.split(" ·")[0] for line in lines] == [f"step {n}/40" for n in (2, 12, 22, 32, 40)]
    assert "\x1b" not in text


def test_the_table_at_the_end_has_first_and_last_losses(clock: Clock) -> None:
    out = console(terminal=False)
    drive(ProgressCallback(1000, out), clock, 40, 1.0, is_world_process_zero=True)
    text = out.file.getvalue()  # type: ignore[attr-defined]
    assert "40 steps · 40,000 tokens · 0:40 · 1,000 tokens/s" in text
    assert "training" in text
    assert "4.8000" in text
    assert "1.0000" in text
    assert "exit 2" in text


def test_a_terminal_gets_one_live_line(clock: Clock) -> None:
    out = console(terminal=True)
    callback = ProgressCallback(1000, out)
    drive(callback, clock, 6, 1.0, is_world_process_zero=True)
    text = out.file.getvalue()  # type: ignore[attr-defined]
    assert "step 6/6" in text
    assert callback._live is None


def test_a_broken_run_gives_the_terminal_back(clock: Clock) -> None:
    callback = ProgressCallback(1000, console(terminal=True))
    callback.on_train_begin(None, TrainerState(is_world_process_zero=True), TrainerControl())  # type: ignore[arg-type]
    assert callback._live is not None
    callback.close()
    callback.close()
    assert callback._live is None


def test_other_processes_print_nothing(clock: Clock) -> None:
    for terminal in (False, True):
        out = console(terminal)
        drive(ProgressCallback(1000, out), clock, 10, 10.0, is_world_process_zero=False)
        assert out.file.getvalue() == ""  # type: ignore[attr-defined]


def test_validation_and_saving_do_not_count_as_training_time(clock: Clock) -> None:
    callback = ProgressCallback(1000, console(terminal=False))
    state: Any = TrainerState(max_steps=10)
    args: Any = None
    callback.on_train_begin(args, state, TrainerControl())
    for step in range(1, 6):
        clock.now += 1.0
        state.global_step = step
        callback.on_step_end(args, state, TrainerControl())
        clock.now += 50.0
        callback.on_evaluate(args, state, TrainerControl())
        clock.now += 50.0
        callback.on_save(args, state, TrainerControl())
    assert "1,000 tokens/s" in callback.line(5, 10)


def test_a_slow_first_step_is_forgotten(clock: Clock) -> None:
    callback = ProgressCallback(1000, console(terminal=False))
    state: Any = TrainerState(max_steps=10)
    callback.on_train_begin(None, state, TrainerControl())  # type: ignore[arg-type]
    for step, seconds in enumerate((60.0, 60.0, 1.0, 1.0, 1.0), start=1):
        clock.now += seconds
        state.global_step = step
        callback.on_step_end(None, state, TrainerControl())  # type: ignore[arg-type]
    assert callback._seconds_per_step is not None
    assert callback._seconds_per_step > 1.0


def test_exit_losses_are_told_from_other_metrics() -> None:
    logs = {
        "exit_12_loss": 3.0,
        "exit_2_loss": 4.0,
        "exit_2_kl": 1.0,
        "eval_exit_2_loss": 9.0,
        "final_loss": 2.0,
    }
    assert exit_losses(logs) == {2: 4.0, 12: 3.0}


def test_many_exits_are_thinned_out() -> None:
    assert spread([1, 2, 3], 4) == [1, 2, 3]
    assert spread(list(range(1, 32)), 4) == [1, 11, 21, 31]

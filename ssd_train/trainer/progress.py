"""Show a run's progress: one live line in a terminal, plain lines elsewhere, and a table at the end."""

from __future__ import annotations

import re
from time import monotonic
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

_EXIT = re.compile(r"exit[_/ .]?(\d+)")
_LOSS = re.compile(r"(?:^|[_/ .])(?:ce|loss)(?:$|[_/ .])")
_PLAIN_SECONDS = 10.0
_SMOOTHING = 0.9
_LINE_EXITS = 4
_TABLE_EXITS = 8


class ProgressCallback(TrainerCallback):
    """Print step, loss, exit losses, tokens a second and time left; `tokens_per_step` counts all processes."""

    def __init__(self, tokens_per_step: int, console: Console | None = None) -> None:
        self.tokens_per_step = tokens_per_step
        self.console = console or Console()
        self.first: dict[str, float] = {}
        self.latest: dict[str, float] = {}
        self._live: Live | None = None
        self._seconds_per_step: float | None = None
        self._started = self._step_end = self._printed = 0.0
        self._first_step = 0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Open the live line on the first process."""
        self._started = self._step_end = monotonic()
        self._printed = float("-inf")
        self._first_step = state.global_step
        if state.is_world_process_zero and self.console.is_terminal:
            self._live = Live(console=self.console, refresh_per_second=4, transient=True)
            self._live.start()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Take the time of the step and renew the line."""
        now = monotonic()
        seconds, self._step_end = now - self._step_end, now
        old = self._seconds_per_step
        # The first step also pays for warming up, so it does not enter the average.
        warm = state.global_step > self._first_step + 1
        self._seconds_per_step = (
            seconds if old is None or not warm else _SMOOTHING * old + (1 - _SMOOTHING) * seconds
        )
        if self._live is not None:
            self._live.update(
                Text(self.line(state.global_step, state.max_steps), no_wrap=True, overflow="ellipsis")
            )

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Remember the figures and, without a terminal, print a line now and then."""
        numbers = {
            name: float(value) for name, value in (logs or {}).items() if isinstance(value, (int, float))
        }
        self.first = {**numbers, **self.first}
        self.latest |= numbers
        now = monotonic()
        due = now - self._printed >= _PLAIN_SECONDS or state.global_step >= state.max_steps
        if state.is_world_process_zero and self._live is None and "loss" in numbers and due:
            self._printed = now
            self.console.print(self.line(state.global_step, state.max_steps), soft_wrap=True, highlight=False)

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Leave the time of a validation out of the next step's."""
        self._step_end = monotonic()

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Leave the time of a save out of the next step's."""
        self._step_end = monotonic()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Close the live line and print the table."""
        self.close()
        if state.is_world_process_zero:
            self.console.print(self.headline(state.global_step), highlight=False)
            self.console.print(self.summary())

    def close(self) -> None:
        """Give the terminal back; safe at any time, also after an exception."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def line(self, step: int, max_steps: int) -> str:
        """Return the progress of `step` as one line."""
        parts = [f"step {step}/{max_steps}"]
        if "loss" in self.latest:
            parts.append(f"loss {self.latest['loss']:.3f}")
        exits = exit_losses(self.latest)
        if exits:
            shown = spread(list(exits), _LINE_EXITS)
            parts.append("exits " + " ".join(f"{layer}:{exits[layer]:.2f}" for layer in shown))
        if "eval_loss" in self.latest:
            parts.append(f"held out {self.latest['eval_loss']:.3f}")
        if "eval_tau_sim" in self.latest:
            parts.append(f"accept length {self.latest['eval_tau_sim']:.2f}")
        if self._seconds_per_step:
            parts.append(f"{self.tokens_per_step / self._seconds_per_step:,.0f} tokens/s")
            parts.append(f"{_clock((max_steps - step) * self._seconds_per_step)} left")
        return " · ".join(parts)

    def headline(self, step: int) -> str:
        """Return steps, tokens, time and speed of the whole run, validation and saving included."""
        seconds = monotonic() - self._started
        tokens = (step - self._first_step) * self.tokens_per_step
        rate = tokens / seconds if seconds else 0.0
        return f"{step} steps · {tokens:,} tokens · {_clock(seconds)} · {rate:,.0f} tokens/s"

    def summary(self) -> Table:
        """Return every loss at the first and at the last log as a table."""
        table = Table()
        table.add_column("loss")
        table.add_column("first", justify="right")
        table.add_column("last", justify="right")
        names = {"loss": "training", "eval_loss": "held out"}
        for key, name in names.items():
            if key in self.latest:
                table.add_row(name, f"{self.first[key]:.4f}", f"{self.latest[key]:.4f}")
        first, last = exit_losses(self.first), exit_losses(self.latest)
        for layer in spread(list(last), _TABLE_EXITS):
            table.add_row(f"exit {layer}", f"{first[layer]:.4f}", f"{last[layer]:.4f}")
        return table


def exit_losses(logs: dict[str, float]) -> dict[int, float]:
    """Return the training cross-entropy of each exit in `logs`, by layer; other metrics of exits are left out."""
    found: dict[int, float] = {}
    for name, value in logs.items():
        match = _EXIT.search(name)
        if match and not name.startswith("eval_") and _LOSS.search(name):
            found.setdefault(int(match.group(1)), value)
    return dict(sorted(found.items()))


def spread(layers: list[int], most: int) -> list[int]:
    """Return at most `most` of the sorted `layers`, first and last among them, evenly spread."""
    if len(layers) <= most:
        return layers
    return [layers[round(index * (len(layers) - 1) / (most - 1))] for index in range(most)]


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"

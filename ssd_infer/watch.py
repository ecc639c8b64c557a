"""Evaluate the checkpoints of a run as they appear, in a job of its own, on this machine or on another."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from ssd_infer.checkpoint.manifest import MANIFEST, damage
from ssd_infer.checkpoint.steps import checkpoint_folders, misnamed
from ssd_infer.cli.console import print_error
from ssd_infer.config.evaluation import EvalSettings
from ssd_infer.errors import CheckpointError, SSDError
from ssd_infer.report.wandb import Follower

Evaluate = Callable[[EvalSettings], dict[str, Any]]


class Watch:
    """One watcher of one run directory; several may share the work, none does what another has begun."""

    def __init__(self, settings: EvalSettings, evaluate: Evaluate, judge: Callable[[Any], int]) -> None:
        """Watch `settings.watch`; `evaluate` makes a report of each checkpoint, `judge` its exit code."""
        assert settings.watch is not None
        self.settings, self.evaluate, self.judge = settings, evaluate, judge
        self.run_dir = Path(settings.watch)
        self.follower = Follower(self.run_dir)
        self.failed: dict[Path, int] = {}
        self.code = 0

    def run(
        self, sleep: Callable[[float], None] = time.sleep, clock: Callable[[], float] = time.monotonic
    ) -> int:
        """Report on every checkpoint until the training is over or nothing came for long; return the worst code."""
        last = clock()
        while True:
            if self.look():
                last = clock()
                continue
            if self.over() and not self.waiting():
                break
            idle = self.settings.watch_idle_minutes
            if 0 < idle * 60 <= clock() - last:
                print(f"{self.run_dir}: no new checkpoint for {idle:g} minutes; the watch ends")
                break
            sleep(self.settings.watch_poll_seconds)
        self.follower.flush()
        return self.code

    def look(self) -> bool:
        """Evaluate the oldest checkpoint that has no report; return whether there was one."""
        for checkpoint in self.waiting():
            reports = self.run_dir / "reports"
            reports.mkdir(parents=True, exist_ok=True)
            lock = FileLock(str(reports / f".{checkpoint.name}.lock"), timeout=0)
            try:
                with lock:
                    if not self._report(checkpoint).exists():
                        self._evaluate(checkpoint)
            except Timeout:
                continue  # another watcher is at it
            return True
        return False

    def waiting(self) -> list[Path]:
        """Return the checkpoints without a report, oldest first, but for those that failed here."""
        found = checkpoint_folders(self.run_dir / "checkpoints")
        return [path for path in found if path not in self.failed and not self._report(path).exists()]

    def over(self) -> bool:
        """Return whether the run's last checkpoint is there."""
        try:
            config = yaml.safe_load((self.run_dir / "config.yaml").read_text(encoding="utf-8"))
            last = int(config["train"]["max_steps"])
        except (OSError, KeyError, TypeError, ValueError, yaml.YAMLError):
            return False
        final = self.run_dir / "checkpoints" / f"step-{last}"
        return final.is_dir() and misnamed(final) is None

    def _report(self, checkpoint: Path) -> Path:
        return self.run_dir / "reports" / checkpoint.name / "report.json"

    def _evaluate(self, checkpoint: Path) -> None:
        out = self._report(checkpoint).parent
        print(f"evaluating {checkpoint}", flush=True)
        try:
            _check_whole(checkpoint)
            report = self.evaluate(
                replace(self.settings, watch=None, checkpoint=str(checkpoint), out=str(out))
            )
        except SSDError as error:
            self._note_failure(checkpoint, error)
            return
        except OSError as error:
            if checkpoint.exists():
                raise
            self._note_failure(
                checkpoint, SSDError(f"{checkpoint} was removed while it was evaluated: {error}")
            )
            return
        self.code = max(self.code, self.judge(report))
        self.follower.add(out, training_is_over=self.over())

    def _note_failure(self, checkpoint: Path, error: SSDError) -> None:
        if not checkpoint.exists():
            error = SSDError(f"{checkpoint} was removed before its report was made; raise train.keep_last")
        print_error(error)
        self.failed[checkpoint] = 2
        self.code = max(self.code, 2)


def _check_whole(checkpoint: Path) -> None:
    """Raise CheckpointError when a checkpoint differs from its manifest: its report would look like any other."""
    if not (checkpoint / MANIFEST).exists():
        return  # not made by this toolkit's training; loading says what is wrong with it
    problem = damage(checkpoint)
    if problem is not None and checkpoint.exists():
        raise CheckpointError(f"{checkpoint}: {problem}; it is not evaluated")

"""Write the checkpoint reports of a run, and show the table of the last one."""

from __future__ import annotations

import logging
from pathlib import Path

from ssd_infer.errors import SSDError
from ssd_infer.settings import EvalSettings
from ssd_train.checkpoints import CheckpointStore
from ssd_train.config.schema import Root
from ssd_train.tracking import Tracker

logger = logging.getLogger(__name__)


class Reporter:
    """Evaluate checkpoints of one run as its `eval` settings say."""

    def __init__(self, cfg: Root, run_dir: Path, tracker: Tracker) -> None:
        """Keep what is needed; nothing is loaded before the first report."""
        self.cfg, self.run_dir, self.tracker = cfg, run_dir, tracker

    def directory(self, step: int) -> Path:
        """Return where the report of a checkpoint goes."""
        return self.run_dir / "reports" / f"step-{step}"

    def every_checkpoint(self, path: Path, step: int) -> None:
        """Report on a checkpoint just saved, if the run asks for that; the last one is left to `final`."""
        if self.cfg.eval.enabled and self.cfg.eval.every_checkpoint and step < self.cfg.train.max_steps:
            self._attempt(path, step)

    def final(self, store: CheckpointStore) -> None:
        """Report on the last checkpoint, and on the best if it is another one; print table and places."""
        steps = store.steps()
        if not self.cfg.eval.enabled or not steps:
            return
        best = store.best()
        chosen = dict.fromkeys([*([best] if best is not None else []), store.path(steps[-1])])
        for path in chosen:
            step = int(path.name.removeprefix("step-"))
            if not (self.directory(step) / "report.json").exists():
                self._attempt(path, step, show=True)

    def _attempt(self, path: Path, step: int, show: bool = False) -> None:
        """Evaluate; a report that fails is said aloud but does not fail the training."""
        try:
            self._evaluate(path, step, show)
        except SSDError as error:
            logger.warning("report of step %d: %s", step, error)

    def _evaluate(self, path: Path, step: int, show: bool) -> None:
        from ssd_infer.evaluation import evaluate

        out = self.directory(step)
        evaluate(self.settings(path, out))
        self.tracker.log_report(out, step)
        if show:
            _show(out)

    def settings(self, path: Path, out: Path) -> EvalSettings:
        """Return the settings of one report."""
        wanted, cfg = self.cfg.eval, self.cfg
        return EvalSettings(
            checkpoint=str(path),
            draft=wanted.draft,
            tasks=list(wanted.tasks),
            out=str(out),
            samples=wanted.samples,
            max_new_tokens=wanted.max_new_tokens,
            repeats=wanted.repeats,
            max_minutes=wanted.max_minutes,
            dtype="float32" if cfg.dtype == "float16" else cfg.dtype,
            device=cfg.device,
            threads=cfg.threads,
            seed=cfg.seed,
        )


def _show(out: Path) -> None:
    text = out / "report.md"
    if text.exists():
        print(text.read_text(encoding="utf-8"))
    print(f"report: {out / 'report.html'}")

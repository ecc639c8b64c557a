"""Write the checkpoint reports of a run, and show the table of the last one.

Each is made by a process of its own: beside a trainer, its loaders and a tracking service nothing is measured well.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import logging
from pathlib import Path
from typing import Any

import torch

from ssd_infer.config.evaluation import EvalOptions, EvalSettings
from ssd_infer.corpus import check_prompt_files
from ssd_infer.errors import ConfigError, DataError
from ssd_infer.evaluation import alone
from ssd_infer.evaluation.series import reported
from ssd_infer.evaluation.strategies import check_draft
from ssd_infer.report.terminal import print_report
from ssd_train.config.schema import Root
from ssd_train.recipes import registry as recipes
from ssd_train.runs.checkpoints import CheckpointStore
from ssd_train.runs.randomness import untouched_randomness
from ssd_train.runs.tracking import Tracker

logger = logging.getLogger(__name__)


def check_asked(cfg: Root) -> None:
    """Raise what the report at the end would: ConfigError for its draft or parameters, DataError for a prompt file."""
    try:
        check_draft(cfg.eval.draft, cfg.eval.draft_params, recipes.model_kind(cfg.recipe.kind) or "causal")
    except ConfigError as error:
        raise ConfigError(
            [dataclasses.replace(problem, key=f"eval.{problem.key}") for problem in error.problems]
        ) from error
    try:
        check_prompt_files(cfg.eval.tasks if cfg.eval.enabled else [])
    except DataError as error:
        raise DataError(f"eval.{error}") from error


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
        if not (self.cfg.eval.enabled and self.cfg.eval.every_checkpoint) or step >= self.cfg.train.max_steps:
            return
        threads = torch.get_num_threads()
        try:
            with untouched_randomness():
                self._evaluate(path, step)
        except Exception:  # whatever an evaluation runs into, it is not worth the training
            logger.exception("report of step %d failed; training goes on", step)
        finally:
            torch.set_num_threads(threads)

    def final(self, store: CheckpointStore) -> None:
        """Report on the last checkpoint unless a report on its weights is there; print it, its place and the best one.

        Raises SSDError when the evaluation cannot be made; the checkpoints are safe by then.
        """
        steps = store.steps()
        if not self.cfg.eval.enabled or not steps:
            return
        out = self.directory(steps[-1])
        if reported(out, store.path(steps[-1])) is None:
            self._evaluate(store.path(steps[-1]), steps[-1])
        _show(out)
        best = store.best()
        if best is not None and best != store.path(steps[-1]):
            print(_better(best, store.best_facts()))

    def _evaluate(self, path: Path, step: int) -> None:
        out = self.directory(step)
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()  # the child needs room for the model beside this process
        alone.evaluate_alone(self.settings(path, out))
        CheckpointStore(self.run_dir, self.cfg.train.keep_last).mark_best()
        self.tracker.log_report(out, step)

    def settings(self, path: Path, out: Path) -> EvalSettings:
        """Return the settings of one report."""
        cfg = self.cfg
        asked = {
            item.name: copy.copy(getattr(cfg.eval, item.name)) for item in dataclasses.fields(EvalOptions)
        }
        return EvalSettings(
            **asked,
            checkpoint=str(path),
            out=str(out),
            dtype="float32" if cfg.dtype == "float16" else cfg.dtype,
            device=cfg.device,
            threads=cfg.threads,
            seed=cfg.seed,
        )


def _better(best: Path, facts: dict[str, Any]) -> str:
    """Say which checkpoint is better than the last one, and by what it was chosen."""
    if facts["metric"] == "speedup":
        return f"fastest by its report: {best} ({facts['strategy']}, {facts['value']:.2f} times)"
    return f"longest simulated acceptance: {best}; python -m ssd_infer checkpoint={best} reports on it"


def _show(out: Path) -> None:
    print_report(json.loads((out / "report.json").read_text(encoding="utf-8")), out)

"""Add checkpoint reports to the tracking run that a training started, from this process or from another machine."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

from ssd_infer.report.flat import report_scalars, report_table

logger = logging.getLogger(__name__)

TRACKING = "tracking.json"
"""File of a run directory that names its tracking run."""
STEP = "report/step"
"""The axis of report figures: a report comes long after training went past its step."""


def log_wandb_report(run: Any, report_dir: Path, step: int | None = None) -> None:
    """Send the report in `report_dir` to the open W&B `run`: one Table, its figures, and all its files."""
    import wandb

    report = json.loads((report_dir / "report.json").read_text(encoding="utf-8"))
    columns, rows = report_table(report)
    step = report.get("identity", {}).get("step") if step is None else step
    table = wandb.Table(columns=["step", *columns], data=[[step, *row] for row in rows])
    run.define_metric("report/*", step_metric=STEP)
    run.log({"report": table, STEP: step, **report_scalars(report)})
    artifact = wandb.Artifact(f"report-{run.id}", type="checkpoint-report", metadata={"step": step})
    artifact.add_dir(str(report_dir))
    run.log_artifact(artifact)


class Follower:
    """The W&B run of a run directory, seen from an evaluation job; without such a run it does nothing.

    A run tracked online has one writer, so its reports wait until the training is over, unless it runs with
    `tracking.mode=shared`. Offline, each job keeps its own part, and `wandb sync` joins them.
    """

    def __init__(self, run_dir: Path, mode: str | None = None) -> None:
        """Look into `run_dir`; `mode` is offline, online or shared, and None follows WANDB_MODE, then the training."""
        self.run_dir, self._mode = run_dir, mode or os.environ.get("WANDB_MODE")
        self.pending: list[Path] = []

    @property
    def facts(self) -> dict[str, Any]:
        """Return what the training noted of its tracking run; empty while there is none."""
        file = self.run_dir / TRACKING
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        return found

    @property
    def mode(self) -> str:
        """Return how reports are sent."""
        return self._mode or str(self.facts.get("mode", "offline"))

    def add(self, report_dir: Path, *, training_is_over: bool) -> None:
        """Send the report in `report_dir`, now or when the training is over; a failing service is only a warning."""
        self.pending.append(report_dir)
        if training_is_over or self.mode != "online":
            self.flush()

    def flush(self) -> None:
        """Send what waits."""
        if not self.pending or not self.facts or self.mode in ("disabled", "none"):
            return
        try:
            self._send(self.facts)
        except Exception as error:  # noqa: BLE001 -- the reports are on disk; tracking is not worth an evaluation
            logger.warning("tracking: could not send the reports: %s: %s", type(error).__name__, error)
            return
        self.pending.clear()

    def _send(self, facts: dict[str, Any]) -> None:
        import wandb

        settings = wandb.Settings(
            console="off", silent=True, init_timeout=60, x_primary=False, x_update_finish_state=False
        )
        run = wandb.init(
            id=facts["id"],
            project=facts.get("project", "ssd"),
            entity=facts.get("entity"),
            resume="allow" if self.mode in ("online", "shared") else None,
            mode=self.mode,  # type: ignore[arg-type]
            dir=str(self.run_dir),
            settings=settings,
        )
        with run:
            for report_dir in self.pending:
                log_wandb_report(run, report_dir)

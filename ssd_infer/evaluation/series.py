"""Evaluate every checkpoint of a run, skip what is already reported, and write one comparison over the steps."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ssd_infer.atomic import write_text
from ssd_infer.checkpoint.draft_spec import has_draft
from ssd_infer.checkpoint.provenance import weights_sha256
from ssd_infer.checkpoint.steps import checkpoint_folders, misnamed_folders
from ssd_infer.config.evaluation import EvalSettings
from ssd_infer.errors import CheckpointError, SSDError
from ssd_infer.report.comparison import compare
from ssd_infer.report.comparison_html import render_comparison_html
from ssd_infer.report.comparison_text import render_comparison
from ssd_infer.report.rows import Report, exit_code
from ssd_infer.report.write import dump_json, read_report

logger = logging.getLogger(__name__)

Evaluate = Callable[[EvalSettings], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Series:
    """The comparison of a run's checkpoints; `exit_code` is 0 only if every lossless row of each passed."""

    comparison: dict[str, Any]
    exit_code: int


def find_checkpoints(run: Path) -> list[Path]:
    """Return the run's checkpoints by step, saying what else is called like one; CheckpointError when there is none."""
    directory = Path(run) / "checkpoints"
    for path, reason in misnamed_folders(directory).items():
        logger.warning("%s: %s; it is passed over", path, reason)
    found = [
        path for path in checkpoint_folders(directory) if (path / "config.json").is_file() or has_draft(path)
    ]
    if not found:
        raise CheckpointError(
            f"run: {run} holds no checkpoints/step-N; give the run directory, for instance outputs/layerskip/default"
        )
    return found


def reported(folder: Path, checkpoint: Path) -> Report | None:
    """Return the valid report in `folder` if it is about exactly these weights, else None."""
    try:
        report = read_report(folder)
    except SSDError:
        return None
    return report if report["identity"]["weights_sha256"] == weights_sha256(checkpoint) else None


def evaluate_run(run: Path, settings: EvalSettings, evaluate: Evaluate, say: Callable[[str], None]) -> Series:
    """Evaluate what has no report yet and write `reports/comparison.{json,md,html}`.

    A checkpoint that cannot be evaluated is named and skipped; with none left CheckpointError is raised.
    """
    run = Path(run)
    reports: list[Report] = []
    labels, failures = [], []
    for checkpoint in find_checkpoints(run):
        folder = run / "reports" / checkpoint.name
        report = reported(folder, checkpoint)
        say(f"{checkpoint.name}: {'reported before' if report else 'evaluating'}")
        try:
            reports.append(report or evaluate(replace(settings, checkpoint=str(checkpoint), out=str(folder))))
            labels.append(checkpoint.name)
        except SSDError as error:
            failures.append(f"{checkpoint.name}: {error}")
            say(failures[-1])
    if not reports:
        raise CheckpointError("no checkpoint could be evaluated:\n" + "\n".join(failures))
    comparison = compare(reports, labels) | {"series": series(reports), "failures": failures}
    write_comparison(comparison, run / "reports")
    return Series(comparison, 1 if failures or any(map(exit_code, reports)) else 0)


def write_comparison(comparison: dict[str, Any], folder: Path) -> None:
    """Write the comparison as JSON, Markdown and a page."""
    write_text(folder / "comparison.md", render_comparison(comparison))
    write_text(folder / "comparison.html", render_comparison_html(comparison))
    write_text(folder / "comparison.json", dump_json(comparison))


def series(reports: list[Report]) -> dict[str, Any]:
    """Return the plotted lines: speedup and α of every measured strategy, and loss, each against the step."""
    names = list(
        dict.fromkeys(
            row["name"] for report in reports for row in report["strategies"] if row["status"] == "ok"
        )
    )
    steps = [report["identity"]["step"] for report in reports]
    steps = [index if step is None else step for index, step in enumerate(steps)]
    lines: dict[str, Any] = {
        "steps": steps,
        "loss": [report["quality"].get("loss") for report in reports],
        "speedup": {},
        "alpha": {},
    }
    for name in names:
        rows = [
            next((row for row in report["strategies"] if row["name"] == name), None) for report in reports
        ]
        lines["speedup"][name] = [row["speed"]["speedup"] if row else None for row in rows]
        lines["alpha"][name] = [row["acceptance"]["alpha"] if row else None for row in rows]
    return lines

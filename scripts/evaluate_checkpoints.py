#!/usr/bin/env python3
"""Evaluate every checkpoint of a run and compare them over the steps.

    python scripts/evaluate_checkpoints.py RUN_DIR [key=value …]

RUN_DIR is what training made, for instance outputs/layerskip/default; key=value are settings of `python -m ssd_infer`.
Reports go to RUN_DIR/reports/step-N, the comparison beside them. Repeat the command to go on: a checkpoint whose
weights already have a report is skipped. Exit code 0 only if every lossless row of every checkpoint passed.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig

from ssd_infer.__main__ import LISTS, settings_of
from ssd_infer.cli.console import print_error
from ssd_infer.cli.launch import launch
from ssd_infer.compare import show
from ssd_infer.config.as_typed import quoted
from ssd_infer.config.evaluation import EvalSettings
from ssd_infer.errors import SSDError
from ssd_infer.evaluation.alone import evaluate_alone
from ssd_infer.evaluation.progress import spinner
from ssd_infer.evaluation.series import Series, evaluate_run, find_checkpoints


def main() -> int:
    """Run the command line and return its exit code."""
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        print(__doc__)
        return 0 if "--help" in sys.argv else 2
    run = Path(sys.argv[1])
    try:
        first = find_checkpoints(run)[0]
    except SSDError as error:
        print_error(error)
        return 2
    sys.argv[1:] = [f"checkpoint={quoted(str(first))}", *sys.argv[2:]]
    ConfigStore.instance().store(group="schema", name="evaluate", node=EvalSettings, package="_global_")
    return launch("evaluate", lambda cfg: _evaluate(run, cfg), settings_of, LISTS)


def _evaluate(run: Path, cfg: DictConfig) -> int:
    with spinner() as say:
        found: Series = evaluate_run(
            run, settings_of(cfg), lambda settings: evaluate_alone(settings, say), say
        )
    show(found.comparison)
    print(f"page: {(run / 'reports' / 'comparison.html').resolve()}")
    return found.exit_code


if __name__ == "__main__":
    sys.exit(main())

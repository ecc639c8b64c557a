"""Measure every draft strategy on a checkpoint and write its report.

    python -m ssd_infer checkpoint=DIR [draft=all|NAME] [tasks=...] [out=DIR]

Evaluate the checkpoints of a training run as they appear, in a job of its own:

    python -m ssd_infer watch=RUN_DIR [draft=all|NAME] [tasks=...]

Load as transformers does: a name on the hub with its revision, an adapter, other devices, quantised weights:

    python -m ssd_infer checkpoint=OWNER/NAME revision=main
    python -m ssd_infer checkpoint=DIR adapter=DIR device_map=auto quantization_config.quant_method=...

Smoke run on a CPU, under a minute:

    python -m ssd_infer checkpoint=DIR samples=2 repeats=1 max_new_tokens=16 grid=false
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig

from ssd_infer.cli.launch import launch
from ssd_infer.config.compose import to_settings
from ssd_infer.config.evaluation import EvalSettings, validate
from ssd_infer.strategies.registry import installed
from ssd_infer.threads import wait_passively

LISTS = ("tasks", "temperatures")
"""Keys whose single value may be given without brackets."""


def settings_of(cfg: DictConfig) -> EvalSettings:
    """Return the typed and validated settings that `cfg` describes; raise `ConfigError` with all their problems."""
    return to_settings(cfg, EvalSettings, validate)


def run(cfg: DictConfig) -> int:
    """Evaluate as `cfg` says; return 0 only if every strategy that claims to be lossless proved it."""
    settings = _as_directory(_at_home(settings_of(cfg)))
    from ssd_infer.evaluation import evaluate, report_folder
    from ssd_infer.evaluation.alone import evaluate_alone
    from ssd_infer.evaluation.progress import spinner
    from ssd_infer.report.terminal import print_report
    from ssd_infer.watch import Watch

    # This process measures one checkpoint and ends; of many, none may find what another left behind.
    measure = evaluate if settings.watch is None else evaluate_alone

    def report_on(wanted: EvalSettings) -> dict[str, Any]:
        with spinner() as say:
            report = measure(wanted, say)
        print_report(report, report_folder(wanted))
        return report

    if settings.watch is not None:
        return Watch(settings, report_on, exit_code).run()
    return exit_code(report_on(settings))


def _at_home(settings: EvalSettings) -> EvalSettings:
    """Return `settings` with a leading ~ of its places replaced, which no shell did inside key=value."""

    def full(path: str) -> str:
        return str(Path(path).expanduser()) if path.startswith("~") else path

    return replace(
        settings,
        checkpoint=full(settings.checkpoint),
        watch=None if settings.watch is None else full(settings.watch),
        out=None if settings.out is None else full(settings.out),
        adapter=None if settings.adapter is None else full(settings.adapter),
        cache_dir=None if settings.cache_dir is None else full(settings.cache_dir),
        tasks=[f"file:{full(task[5:])}" if task.startswith("file:") else task for task in settings.tasks],
    )


def _as_directory(settings: EvalSettings) -> EvalSettings:
    """Return `settings` about a directory, where the checkpoint is a name on the hub; its report goes to `reports/`."""
    if settings.revision is None or settings.watch is not None:
        return settings
    from ssd_infer.checkpoint.hub import snapshot

    folder, name = snapshot(settings.checkpoint, settings.loading()), settings.checkpoint.replace("/", "--")
    out = settings.out or str(Path("reports") / f"{name}-{settings.revision}")
    return replace(settings, checkpoint=str(folder), out=out, revision=None)


def exit_code(report: Mapping[str, Any]) -> int:
    """Return 1 if an applicable strategy claims losslessness and its verdict is not `pass`, else 0."""
    rows = [
        row
        for row in report["strategies"]
        if row["status"] != "not_applicable" and row["lossless"]["claimed"]
    ]
    return int(any(row["lossless"]["verdict"] != "pass" for row in rows))


def _watch_names_checkpoints(arguments: list[str]) -> None:
    """Give `checkpoint`, which must be set, a value where `watch=` makes it needless."""
    keys = {argument.partition("=")[0] for argument in arguments}
    if "watch" in keys and "checkpoint" not in keys:
        arguments.append("checkpoint=watched")


def main() -> None:
    """Run the command line and exit with its code."""
    wait_passively()
    store = ConfigStore.instance()
    store.store(group="schema", name="evaluate", node=EvalSettings, package="_global_")
    for name in installed():  # options beside the YAML files of our own
        store.store(group="draft", name=name, node={"draft": name}, package="_global_")
    _watch_names_checkpoints(sys.argv)
    sys.exit(launch("evaluate", run, settings_of, LISTS))


if __name__ == "__main__":
    main()

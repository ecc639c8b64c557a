"""The story of one evaluation: open → quality → study → candidates → time → judge → assemble → write."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from ssd_infer.checkpoint.kinds import kind_at
from ssd_infer.checkpoint.provenance import environment, identity
from ssd_infer.config.evaluation import EvalSettings
from ssd_infer.evaluation import report_folder
from ssd_infer.evaluation.bench import Say, torch_threads
from ssd_infer.evaluation.kind import EvalKind, kind_class
from ssd_infer.evaluation.progress import quiet_libraries
from ssd_infer.evaluation.section import rows, run_section
from ssd_infer.evaluation.setting import Section
from ssd_infer.evaluation.studies import Findings
from ssd_infer.evaluation.summary import absent_row
from ssd_infer.report.schema import SCHEMA_VERSION
from ssd_infer.report.write import check_writable, write_report, writing

logger = logging.getLogger(__name__)


def evaluate(settings: EvalSettings, say: Say | None = None) -> dict[str, Any]:
    """Measure every strategy on `settings.checkpoint`, write the report files, and return the report.

    What differs between kinds of models is asked of the checkpoint's kind. `say` receives one line a phase (None: the
    log does). Raises SSDError when the checkpoint, what is decoded or the place of the report are unusable; a strategy
    that fails is a row with its reason.
    """
    folder = report_folder(settings)
    check_writable("out", folder)
    with torch_threads(settings.threads), quiet_libraries():
        kind = kind_class(kind_at(settings.checkpoint)).open(settings, say or logger.info)
        quality = kind.quality()
        studied = kind.study()
        sections = [run_section(kind, setting) for setting in kind.settings()]
        report = assemble(kind, sections, quality, studied)
    with writing("out", folder):
        write_report(report, folder, list(samples(kind, sections)))
    kind.remember()
    return report


def assemble(
    kind: EvalKind,
    sections: Sequence[Section],
    quality: dict[str, Any],
    studied: Sequence[Findings] = (),
) -> dict[str, Any]:
    """Put the report together; every strategy name has a row, and what was `studied` at the start is added to it."""
    baselines: list[dict[str, Any]] = []
    peers: list[dict[str, Any]] = []
    strategies: list[dict[str, Any]] = []
    for section in sections:
        for rows_of_report, found in zip((baselines, peers, strategies), rows(section), strict=True):
            rows_of_report.extend(found)
    peers += kind.more_peers()
    strategies += [absent_row(item) for item in kind.absent({row["name"] for row in strategies})]
    for row in strategies:
        for findings in studied:
            findings.attach(row)
    for section in sections:
        texts = kind.texts(section)
        for row in strategies:
            if row["name"] in texts:
                row["extra"]["stream"] = texts[row["name"]]
    context = kind.context
    context.notes += kind.show(baselines, peers, strategies)
    return {
        "schema_version": SCHEMA_VERSION,
        "identity": identity(context.settings.checkpoint, context.settings.loading()),
        "environment": environment(context.settings.seed, context.device, context.dtype),
        "protocol": kind.protocol(sections),
        "baselines": baselines,
        "peers": peers,
        "strategies": strategies,
        "quality": quality,
        "verdict": kind.verdict(baselines, peers, strategies),
    }


def samples(kind: EvalKind, sections: Sequence[Section]) -> Iterator[dict[str, Any]]:
    """Yield one object a timed call: who decoded what in which time."""
    for section in sections:
        for name, records in section.found.records.items():
            for record in records:
                yield kind.sample(section, name, record)

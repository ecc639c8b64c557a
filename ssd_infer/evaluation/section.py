"""One part of an evaluation: everybody at one setting is chosen, timed together, judged, and told of in rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ssd_infer.evaluation.contenders import Contender
from ssd_infer.evaluation.kind import EvalKind
from ssd_infer.evaluation.losslessness import LosslessResult
from ssd_infer.evaluation.measure import measure
from ssd_infer.evaluation.setting import Section, Setting, shortfalls, stand_in
from ssd_infer.evaluation.strategies import Absent
from ssd_infer.evaluation.studies import Findings, timed_rows
from ssd_infer.evaluation.summary import absent_row, baseline_row, peer_row, share_plain, strategy_row

STUDIED = 0.15
"""Share of a setting's measuring time that studies of the timed rows take, where there are any."""


def run_section(kind: EvalKind, setting: Setting) -> Section:
    """Choose all contenders at one setting, time them together, and judge them."""
    context, settings = kind.context, kind.context.settings
    field_ = kind.candidates(setting)
    contenders = field_.contenders
    stand_in(contenders)
    running = sum(item.stands_for is None for item in contenders)
    context.say(f"{kind.verb} with {running} contenders, {setting.said}")
    studying = kind.studies(setting)
    studied = studying is not None and bool(studying.studies(timed_rows(contenders)))
    found = measure(
        contenders,
        setting.units,
        settings.repeats,
        kind.max_new_tokens,
        settings.seed,
        context.device,
        setting.measuring.part(1 - STUDIED) if studied else setting.measuring,
    )
    context.notes += shortfalls(found, kind.max_new_tokens, setting.said)
    context.notes += _broken_baselines(kind, contenders)
    if kind.counts_drafts:
        share_plain(found, contenders)
    findings = Findings()
    if studying is not None:
        findings = replace(studying, new_tokens=found.new_tokens).run(timed_rows(contenders))
    section = Section(setting, contenders, field_.absent, found, kind.board(setting, contenders, found))
    section.more = {name: {"predicted_by_calibration": value} for name, value in field_.predicted.items()}
    for name, facts in field_.searches.items():
        section.more.setdefault(name, {})["search"] = facts
    section.learn(findings)
    kind.judge(section)
    return section


def _broken_baselines(kind: EvalKind, contenders: list[Contender]) -> list[str]:
    """Say why plain decoding failed, by whom; of a model refused by name the rows say it already."""
    failed = [item for item in contenders if item.kind == "baseline" and item.failure is not None]
    return [f"{item.name} failed: {item.failure}" for item in failed if item.failure != kind.refusal]


def rows(section: Section) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the section's baseline, peer and strategy rows."""
    missing = LosslessResult("not_run", "no test was made at this setting")
    baselines = [
        baseline_row(item, section.board) for item in section.contenders if item.kind in ("baseline", "again")
    ]
    peers = [
        peer_row(item, section.board, section.verdicts.get(item.name, missing))
        for item in section.contenders
        if item.kind == "peer"
    ]
    strategies = []
    for item in section.contenders:
        if item.kind != "strategy":
            continue
        if item.failure is not None or section.board is None or not section.found.of(item.name):
            reason = item.failure or "no plain decoding ran"
            strategies.append(absent_row(Absent(item.name, "failed", reason), item.claimed))
        else:
            verdict = section.verdicts.get(item.name, missing)
            strategies.append(strategy_row(item, section.board, verdict, section.more.get(item.name, {})))
    studied = Findings(faults=section.faults)
    for row in strategies:
        studied.attach(row)
    return baselines, peers, strategies + [absent_row(item) for item in section.absent]

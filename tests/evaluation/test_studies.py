"""What strategies study of themselves: asked at their moments, carried in their rows, costing nobody a row."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from ssd_infer.config.evaluation import EvalSettings
from ssd_infer.engine.session import Proposal
from ssd_infer.errors import DataError
from ssd_infer.evaluation import bench, evaluate
from ssd_infer.report.rows import exit_code
from ssd_infer.report.schema import validate
from ssd_infer.report.table import Table
from ssd_infer.strategies.base import Resolved
from ssd_infer.strategies.info import StrategyInfo
from ssd_infer.strategies.ngram.ngram import Ngram, NgramParams
from ssd_infer.strategies.study import Study, StudyContext, Trial
from tests.conftest import build_model
from tests.registered import know_only


class Curious(Ngram):
    """A strategy that studies at every moment."""

    info = StrategyInfo("curious", "causal", "curious")
    seen: ClassVar[list[tuple[str, StudyContext]]] = []
    broken: ClassVar[dict[str, Exception]] = {}
    wrong: ClassVar[str | None] = None

    @classmethod
    def resolve(cls, *_: Any) -> Resolved:
        return Resolved(NgramParams())

    def propose(self, limit: int) -> Proposal:
        """Guess one token for every row, so that the row drafts whatever the model says."""
        return Proposal(torch.full((len(self.session.rows), min(1, limit)), 7))

    @classmethod
    def studies(cls, context: StudyContext) -> list[Study]:
        if "asking" in cls.broken:
            raise cls.broken["asking"]
        return [Study(f"own_{when}", cls._run(when), when, lambda _: cls.wrong) for when in MOMENTS]

    @classmethod
    def _run(cls, when: str) -> Any:
        def run(context: StudyContext) -> dict[str, Any]:
            cls.seen.append((when, context))
            if when in cls.broken:
                raise cls.broken[when]
            return {"moment": when, "tokens": context.new_tokens}

        return run

    @classmethod
    def tables(cls, row: Mapping[str, Any]) -> list[Table]:
        keys = sorted(key for key in row["extra"] if key.startswith("own_"))
        return [Table("Own", ("key",), tuple((key,) for key in keys))]


MOMENTS: Any = ("start", "contexts", "timed", "streams")


@pytest.fixture(autouse=True)
def curious(monkeypatch: pytest.MonkeyPatch) -> None:
    know_only(monkeypatch, (), Curious)
    monkeypatch.setattr(Curious, "seen", [])
    monkeypatch.setattr(Curious, "broken", {})
    monkeypatch.setattr(Curious, "wrong", None)
    monkeypatch.setattr(bench, "shift_streams", lambda *_: [[[5], [6], [7]]])


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "step-1"
    build_model(layers=3, eos_token_id=2).save_pretrained(folder)
    (folder / "prompts.jsonl").write_text(json.dumps({"ids": [5, 6, 7, 8]}))
    return folder


def evaluated(folder: Path, **changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "checkpoint": str(folder),
        "tasks": [f"file:{folder}/prompts.jsonl", "task_shift"],
        "contexts": [12],
        "temperatures": [0.0, 1.0],
        "samples": 1,
        "repeats": 1,
        "max_new_tokens": 4,
        "threads": 1,
        "device": "cpu",
        "peers": False,
    }
    report = evaluate(EvalSettings(**(base | changes)))
    validate(report)
    return report


def row_of(report: dict[str, Any], name: str = "curious") -> dict[str, Any]:
    found: dict[str, Any] = next(row for row in report["strategies"] if row["name"] == name)
    return found


def test_every_moment_is_asked_for_once_a_setting_and_its_facts_are_in_the_row(checkpoint: Path) -> None:
    report = evaluated(checkpoint)
    assert [when for when, _ in Curious.seen] == ["start", "contexts", *("timed", "streams") * 2]
    contexts = dict(Curious.seen[:4])
    assert contexts["start"].params is None
    assert contexts["timed"].params == {"gamma": 8, "max_ngram": 4, "min_ngram": 1}
    assert contexts["timed"].new_tokens == 4
    assert Curious.seen[4][1].sampling.suffix == ":t1"
    greedy, sampled = row_of(report), row_of(report, "curious:t1")
    assert {key for key in greedy["extra"] if key.startswith("own_")} == {f"own_{when}" for when in MOMENTS}
    assert {key for key in sampled["extra"] if key.startswith("own_")} == {"own_timed", "own_streams"}
    assert len(greedy["extra"]["tables"][0]["rows"]) == 4
    assert exit_code(report) == 0


def test_contexts_and_streams_only_where_they_were_asked_for(checkpoint: Path) -> None:
    evaluated(checkpoint, tasks=[f"file:{checkpoint}/prompts.jsonl"], contexts=[], temperatures=[0.0])
    assert [when for when, _ in Curious.seen] == ["start", "timed"]


@pytest.mark.parametrize("when", ["asking", "start", "timed", "streams"])
def test_a_study_that_fails_is_a_warning_and_costs_no_row(checkpoint: Path, when: str) -> None:
    Curious.broken[when] = RuntimeError("no such study")
    report = evaluated(checkpoint, temperatures=[0.0])
    row = row_of(report)
    assert row["status"] == "ok"
    assert f"own_{when}" not in row["extra"]
    warned = [line for line in report["verdict"]["warnings"] if "RuntimeError: no such study" in line]
    assert warned
    assert all(line.startswith("curious: ") for line in warned)


def test_a_request_that_cannot_be_met_is_refused_before_anything_is_timed(checkpoint: Path) -> None:
    Curious.broken["contexts"] = DataError("tasks: there is no text of that length")
    with pytest.raises(DataError, match="no text of that length"):
        evaluated(checkpoint)
    Curious.broken.clear()
    Curious.broken["streams"] = DataError("tasks: there is no text of that length")
    assert row_of(evaluated(checkpoint, temperatures=[0.0]))["status"] == "ok"


def test_output_that_changed_in_a_study_fails_the_row_and_the_run(checkpoint: Path) -> None:
    Curious.wrong = "the output of the study changed"
    report = evaluated(checkpoint)
    assert row_of(report)["lossless"]["verdict"] == "fail"
    assert row_of(report, "curious:t1")["lossless"]["detail"] == "the output of the study changed"
    assert exit_code(report) == 1


def test_trials_are_timed_against_plain_decoding(checkpoint: Path) -> None:
    evaluated(checkpoint, temperatures=[0.0])
    context = Curious.seen[0][1]
    right, wrong = Trial("curious", {"gamma": 2}), Trial("curious", {"gamma": 0})
    found = context.time_trials([right, wrong], 4, context.deadline)
    assert found[0] is not None
    assert found[0] > 0
    assert found[1] is None

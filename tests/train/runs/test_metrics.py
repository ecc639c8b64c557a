"""Ratios are divided last, and the metrics file has one line a step whatever happens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from ssd_train.runs.metrics import MetricsFile, RatioSums


def ratio(num: float, den: float) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(num), torch.tensor(den)


def test_ratios_weigh_by_their_denominators() -> None:
    sums = RatioSums()
    sums.add({"a": ratio(1, 1), "b": ratio(3, 4)})
    sums.add({"a": ratio(1, 3)})
    assert sums.drain() == {"a": 0.5, "b": 0.75}
    assert sums.drain() == {}


def test_ranks_are_added_before_dividing() -> None:
    sums = RatioSums()
    sums.add({"a": ratio(1, 1)})
    other = torch.tensor([[1.0, 7.0]])
    assert sums.drain(lambda table: table + other) == {"a": 0.25}


def test_pending_sums_survive_a_checkpoint_exactly() -> None:
    sums, copy = RatioSums(), RatioSums()
    sums.add({"a": ratio(0.1, 3)})
    copy.load(json.loads(json.dumps(sums.state())), torch.device("cpu"))
    for each in (sums, copy):
        each.add({"a": ratio(0.2, 7)})
    assert sums.drain() == copy.drain()


def test_a_second_write_at_a_step_joins_the_line(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "deep" / "metrics.jsonl")
    file.write(1, {"loss": 3.0})
    file.write(2, {"loss": 2.0})
    file.write(2, {"eval_loss": 2.5})
    file.write(3, {"loss": 1.0})
    lines = [json.loads(line) for line in file.path.read_text().splitlines()]
    assert lines == [
        {"step": 1, "loss": 3.0},
        {"step": 2, "loss": 2.0, "eval_loss": 2.5},
        {"step": 3, "loss": 1.0},
    ]


@pytest.mark.parametrize("torn", ["", '{"step": 5, "lo'])
def test_resuming_drops_later_and_torn_lines_and_goes_on(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps({"step": step}) + "\n" for step in (1, 2, 3, 4)) + torn)
    file = MetricsFile(path)
    file.keep_until(3)
    file.write(3, {"eval_loss": 1.0})
    file.write(4, {"loss": 2.0})
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines == [{"step": 1}, {"step": 2}, {"step": 3, "eval_loss": 1.0}, {"step": 4, "loss": 2.0}]

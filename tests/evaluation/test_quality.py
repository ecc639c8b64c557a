"""The quality of exits keeps to its share of the time, also where one window over a large vocabulary is longer."""

from __future__ import annotations

import math
from itertools import count

import pytest

from ssd_infer.engine.target import Target
from ssd_infer.evaluation import quality
from ssd_infer.tuning.budget import Deadline
from tests.conftest import build_model

LAYERS, VOCAB, TOKENS = 3, 97, 4
TEXT = [[(7 * place + row) % VOCAB for place in range(33)] for row in range(2)]


@pytest.fixture(scope="module")
def target() -> Target:
    return Target.of(build_model(layers=LAYERS, vocab_size=VOCAB))


def measured(target: Target, windows: list[list[int]], looks: float = math.inf) -> dict[str, object]:
    """Measure until the clock, which goes on by a second whenever it is looked at, says `looks`."""
    seconds = count(1)
    return quality.exit_quality(target, windows, "text", Deadline(looks, lambda: float(next(seconds))))


def test_it_stops_within_a_window_and_reports_the_tokens_it_read(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = measured(target, [TEXT[0][: 3 * TOKENS + 1]])
    monkeypatch.setattr(quality, "PIECE", TOKENS * LAYERS * VOCAB)
    cut = measured(target, TEXT, looks=3)
    assert cut["tokens"] == 3 * TOKENS
    assert cut["loss"] == pytest.approx(whole["loss"], rel=1e-6)
    assert [row["agreement"] for row in cut["exits"]] == [row["agreement"] for row in whole["exits"]]  # type: ignore[attr-defined]


def test_a_share_that_is_over_already_buys_one_piece(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality, "PIECE", 1)
    assert measured(target, TEXT, looks=0)["tokens"] == 1


def test_without_a_limit_every_token_counts(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = measured(target, TEXT)
    monkeypatch.setattr(quality, "PIECE", 5 * LAYERS * VOCAB)
    pieces = measured(target, TEXT)
    assert whole["tokens"] == pieces["tokens"] == 64
    assert pieces["perplexity"] == pytest.approx(whole["perplexity"], rel=1e-6)

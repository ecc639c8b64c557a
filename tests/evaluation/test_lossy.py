"""Figures of lossy rows are pooled over calls, weighted by tokens."""

from __future__ import annotations

import pytest

from ssd_infer.evaluation.lossy import pooled


def test_calls_are_weighted_by_their_tokens() -> None:
    found = pooled(
        [
            {"emitted": 10, "skipped": 4, "agreement": 0.75, "kl": 0.1},
            {"emitted": 30, "skipped": 16, "agreement": 1.0, "kl": 0.2},
            {"emitted": 10, "skipped": 0, "agreement": None, "kl": None},
            {"rounds": 3},
        ]
    )
    assert found["skipped_share"] == pytest.approx(20 / 50)
    assert found["agreement"] == pytest.approx(19 / 20)
    assert found["kl"] == pytest.approx(3.6 / 20)
    assert found["disagreement"] == pytest.approx(1 / 50)


def test_lossless_drafters_say_nothing() -> None:
    assert pooled([{"confidence": 0.5}, {}]) == {}
    assert pooled([{"emitted": 5, "skipped": 0, "agreement": None, "kl": None}])["agreement"] is None

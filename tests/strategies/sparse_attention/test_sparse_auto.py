"""Automatic settings: measured costs decide, γ follows acceptance, and nothing is drafted where nothing is gained."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import ssd_infer
from ssd_infer.engine.target import Target
from ssd_infer.strategies.sparse_attention import draft_length as pace_module
from ssd_infer.strategies.sparse_attention import sparse_calibration as calibration
from ssd_infer.strategies.sparse_attention import sparse_memory as memory
from ssd_infer.strategies.sparse_attention.draft_length import DraftLengthController
from ssd_infer.strategies.sparse_attention.selectors import Pillar
from ssd_infer.strategies.sparse_attention.sparse_attention import SparseAttention
from ssd_infer.strategies.sparse_attention.sparse_costs import SparseCosts
from ssd_infer.strategies.sparse_attention.sparse_params import SparseAttentionParams
from tests.conftest import ModelFactory
from tests.engine.test_exactness import prompts, reference


def costs_of(plain: float, draft: float, verify: tuple[float, float]) -> SparseCosts:
    """Return costs whose drafts cost the same whatever they read."""
    return SparseCosts(plain, (8, 400), (draft, draft), (0.5, 0.5), (2, 13), verify)


CHEAP = costs_of(10.0, 1.0, (10.0, 13.0))
DEAR = costs_of(1.0, 1.0, (2.0, 9.0))
SMALL = {"ratio": 0.1, "min_budget": 8}


def with_costs(monkeypatch: pytest.MonkeyPatch, costs: SparseCosts) -> list[tuple[int, int]]:
    """Let every measurement find `costs`; return the (context, batch) pairs asked for."""
    asked: list[tuple[int, int]] = []

    def recall(_target: Target, context: int, batch: int) -> SparseCosts:
        asked.append((context, batch))
        return costs

    monkeypatch.setattr(calibration, "cached_costs", recall)
    return asked


def rows_of(count: int) -> list[torch.Tensor]:
    """Return ragged prompts long enough for drafts to save anything."""
    return [torch.cat([row] * 5) for row in prompts(count, 97)]


def test_auto_decides_by_the_costs_at_this_batch_and_context(
    tiny_model: ModelFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, rows = tiny_model(), rows_of(4)
    asked = with_costs(monkeypatch, CHEAP)
    out = ssd_infer.generate(model, rows, draft="sparse_attention", draft_params=SMALL, max_new_tokens=16)
    assert set(asked) == {(max(map(len, rows)), 4)}
    assert out.draft == "sparse_attention"
    assert out.note.startswith("auto: pillar, 10% read, γ ")
    assert out.draft_params["cold_start"] == "prompt"
    usual = [calibration.usual_agreement(10)] * calibration.MAX_GAMMA
    assert out.draft_params["gamma"] == CHEAP.best_gamma(10, usual)[0]
    assert out.sequences == reference(model, rows, 16)


def test_no_gain_means_plain_decoding_and_says_so(
    tiny_model: ModelFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, rows = tiny_model(), rows_of(2)
    with_costs(monkeypatch, DEAR)
    out = ssd_infer.generate(model, rows, draft="sparse_attention", draft_params=SMALL, max_new_tokens=8)
    assert out.draft is None
    assert out.note.startswith("plain decoding: the best predicted speedup is 0.")
    assert out.sequences == reference(model, rows, 8)


def test_a_short_context_is_not_even_measured(
    tiny_model: ModelFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = with_costs(monkeypatch, CHEAP)
    out = ssd_infer.generate(tiny_model(), prompts(2, 97), draft="sparse_attention", max_new_tokens=4)
    assert (out.draft, asked) == (None, [])
    assert "read as fast as 192 slots" in out.note


def test_a_given_gamma_is_neither_measured_nor_refused(
    tiny_model: ModelFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = with_costs(monkeypatch, DEAR)
    params: dict[str, Any] = SMALL | {"gamma": 3}
    out = ssd_infer.generate(
        tiny_model(), rows_of(2), draft="sparse_attention", draft_params=params, max_new_tokens=8
    )
    assert (out.draft_params["gamma"], out.draft_params["adapt"], asked) == (3, False, [])
    assert out.draft_params["cold_start"] == "dense"


def test_drafting_stops_when_drafts_are_wrong(
    tiny_model: ModelFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random weights and three slots: nearly every draft is wrong, so the predicted gain is soon gone."""
    model, rows = tiny_model(), rows_of(4)
    with_costs(monkeypatch, costs_of(10.0, 4.0, (12.0, 20.0)))
    monkeypatch.setattr(calibration, "usual_agreement", lambda _slots: 0.85)
    params = {"selector": "streaming", "ratio": 0.01, "min_budget": 1}
    out = ssd_infer.generate(model, rows, draft="sparse_attention", draft_params=params, max_new_tokens=60)
    total = out.stats.total
    assert out.sequences == reference(model, rows, 60)
    assert total.drafted < total.rounds
    resolved = SparseAttentionParams(**out.draft_params)
    found = calibration.remembered(Target.of(model), resolved, 9)
    assert found[0] < 0.85
    assert [round(share, 3) for share in found] == out.stats.report["shares"]


def test_pace_counts_judged_drafts_by_position() -> None:
    pace = DraftLengthController([0.5] * 4, 4)
    assert pace.shares == pytest.approx([0.5] * 4)
    # right: 2 1 1 1, judged: 2 2 1 1; one error where three were expected, and twelve more in the prior
    pace.learn([4, 1], [4, 4])
    usual = 1 - 0.5 * (1 + 12) / (3 + 12)
    wanted = [(2 + 6 * usual) / 8, (1 + 6 * usual) / 8, (1 + 6 * usual) / 7, (1 + 6 * usual) / 7]
    assert pace.shares == pytest.approx(wanted)
    pace.learn(
        [0, 0], [1, 0]
    )  # a row without drafts is not judged; positions without any are forgotten faster
    usual = 1 - 0.5 * (1 + 0.9 + 12) / (0.5 * (0.98 * 2 + 1 + 0.9 * 4) + 12)
    assert pace.shares[0] == pytest.approx((0.98 * 2 + 6 * usual) / (0.98 * 2 + 1 + 6))
    assert pace.shares[1] == pytest.approx((0.9 * 1 + 6 * usual) / (0.9 * 2 + 6))
    assert pace.gamma(3) == 3
    before = pace.shares
    pace.learn([0, 0], [0, 0])
    assert pace.shares == before


def test_bad_luck_at_one_position_is_forgotten() -> None:
    """Without it γ stays below a position that failed once: what is not drafted is not judged."""
    pace = DraftLengthController([0.9] * 4, 4)
    pace.learn([2] * 8, [3] * 8)
    unlucky = pace.shares[2]
    assert unlucky < 0.5 < 0.85 < pace.shares[0]
    for _ in range(20):
        pace.learn([2] * 8, [2] * 8)
    assert pace.shares[2] > 0.8
    assert pace.shares[3] > 0.9


def test_pace_follows_what_is_accepted() -> None:
    pace = DraftLengthController([0.9] * 12, 12, CHEAP, 50)
    before = pace.gamma(100)
    for _ in range(40):
        pace.learn([2], [before])
    assert pace.gamma(100) == 2


def test_pace_pauses_and_looks_again() -> None:
    pace = DraftLengthController([0.9] * 12, 12, DEAR, 50)
    plan = []
    heard = []
    for _ in range(200):
        heard.append(pace.resumes)
        plan.append(pace.gamma(100))
    looks = [at for at, gamma in enumerate(plan) if gamma]
    assert looks == [95, 191]
    assert {plan[at] for at in looks} == {2}
    assert [at for at, told in enumerate(heard) if told] == looks
    cheap = DraftLengthController([0.9] * 12, 12, CHEAP, 50)
    assert (cheap.gamma(100) > 2, cheap.gamma(1)) == (True, 1)


def test_drafting_resumes_exactly(tiny_model: ModelFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look after a pause drafts on scores of the pass just before it."""
    monkeypatch.setattr(pace_module, "_PAUSE", 5)
    with_costs(monkeypatch, DEAR)
    model, rows = tiny_model(), rows_of(4)
    params: dict[str, Any] = SMALL | {"selector": "pillar", "gamma": 4, "adapt": True}
    out = ssd_infer.generate(model, rows, draft="sparse_attention", draft_params=params, max_new_tokens=40)
    assert out.sequences == reference(model, rows, 40)
    assert 0 < out.stats.total.drafted < out.stats.total.rounds


def test_auto_reads_more_where_reading_is_cheap(
    tiny_model: ModelFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agreement grows with what is read; how much is worth reading depends on what reading costs."""
    monkeypatch.setattr(memory, "MOST_SHARE", 0.5)
    target, rows = Target.of(model := tiny_model(max_position_embeddings=8192)), [[2] * 4000]
    found = []
    for slope in (0.0, 8.0):
        costs = SparseCosts(10.0, (100, 800), (1.0, 1.0 + slope), (0.5, 0.5), (2, 13), (10.0, 13.0))
        with_costs(monkeypatch, costs)
        resolved = SparseAttention.resolve(target, SparseAttentionParams(), rows, False)
        assert isinstance(resolved.params, SparseAttentionParams)
        found.append(resolved.params.ratio)
    assert found == [0.2, 0.05]
    assert [round(calibration.usual_agreement(slots), 2) for slots in (51, 205, 410)] == [0.71, 0.85, 0.89]
    assert model.config.max_position_embeddings == 8192


def test_auto_never_adds_more_than_a_tenth_to_the_memory(
    tiny_model: ModelFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fifth of the slots would be read for nothing, but holding them would not be free."""
    costs = SparseCosts(10.0, (100, 800), (1.0, 1.0), (0.5, 0.5), (2, 13), (10.0, 13.0))
    with_costs(monkeypatch, costs)
    model = tiny_model(head_dim=64, max_position_embeddings=8192)
    target, rows = Target.of(model), [[2] * 8000] * 2
    resolved = SparseAttention.resolve(target, SparseAttentionParams(), rows, False)
    assert isinstance(resolved.params, SparseAttentionParams)
    assert resolved.params.ratio == 0.05
    assert memory.fits(target, 8000, 2, 412)
    assert not memory.fits(target, 8000, 2, 912)


def test_settled_parameters_are_settled_again_to_themselves(
    tiny_model: ModelFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An evaluation passes settled parameters back in; an adapting γ keeps adapting."""
    with_costs(monkeypatch, CHEAP)
    model = tiny_model()
    target = Target.of(model)
    rows = [row.tolist() for row in rows_of(2)]
    first = SparseAttention.resolve(
        target, SparseAttentionParams(ratio=0.1, min_budget=8), rows, False
    ).params
    assert isinstance(first, SparseAttentionParams)
    assert first.adapt
    assert SparseAttention.resolve(target, first, rows, False).params == first
    assert SparseAttention.max_draft(first) == calibration.MAX_GAMMA
    assert SparseAttention.extra_bytes(target, first) == 4 * 2 * (8 + 12) * (2 * 8 * 4 + 4)


def test_memory_beyond_the_cache_is_a_tenth_of_it(
    tiny_model: ModelFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache is never copied: five percent of its slots, room for drafts, and one score a slot and head."""
    sizes: list[tuple[int, int, int]] = []
    propose = SparseAttention.propose

    def spy(self: SparseAttention, limit: int) -> Any:
        proposal = propose(self, limit)
        assert isinstance(self.selector, Pillar)
        scores = self.selector.scores.numel() * self.selector.scores.element_size()
        sizes.append((self.session.cache.nbytes(), self.working.nbytes(), scores))
        return proposal

    monkeypatch.setattr(SparseAttention, "propose", spy)
    model = tiny_model(layers=2, head_dim=32, max_position_embeddings=1024)
    rows = [torch.randint(2, 97, (600,), generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    params = {"selector": "pillar", "ratio": 0.05, "min_budget": 16, "gamma": 4}
    ssd_infer.generate(model, rows, draft="sparse_attention", draft_params=params, max_new_tokens=12)
    assert sizes[0] == (2 * 3 * 2 * 2 * 32 * 4 * (600 + 12 + 4 + 1), 0, 2 * 3 * 2 * 617 * 4)
    assert all(0 < working + scores < 0.1 * cache for cache, working, scores in sizes)
    assert sizes[1][1] > 0
    assert len({working for _, working, _ in sizes[1:]}) == 1  # taken once

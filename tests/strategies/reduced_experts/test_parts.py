"""U(T), routing with fewer experts, calibration of trust, the cost model, one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from scipy.stats import beta

from ssd_infer.strategies.reduced_experts.expert_calibration import Profile
from ssd_infer.strategies.reduced_experts.record import (
    NOTHING,
    Pace,
    Round,
    Rounds,
    Rule,
    calibrate_trust,
    play,
    upper_bound,
)
from ssd_infer.strategies.reduced_experts.routing import choose
from ssd_infer.strategies.reduced_experts.union import (
    membership,
    overlap,
    recent_experts,
    union_size,
)
from ssd_infer.tuning.costs import Curve, RoundCosts


@pytest.mark.parametrize(
    ("experts", "top_k", "shares"),
    [
        (64, 6, (1.91, 3.47, 4.15, 5.81)),
        (64, 8, (1.88, 3.31, 3.90, 5.25)),
        (128, 8, (1.94, 3.64, 4.41, 6.45)),
        (60, 4, (1.93, 3.62, 4.38, 6.36)),
        (8, 2, (1.75, 2.73, 3.05, 3.60)),
    ],
)
def test_union_of_independent_routing_is_the_table(
    experts: int, top_k: int, shares: tuple[float, ...]
) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(20000, experts, generator=generator)
    used = membership(scores.topk(top_k, dim=-1).indices, experts)
    for window, share in zip((2, 4, 5, 8), shares, strict=True):
        independent = experts * (1 - (1 - top_k / experts) ** window)
        assert independent / top_k == pytest.approx(share, abs=0.006)
        assert float(union_size(used, window)) / top_k == pytest.approx(share, rel=0.01)


def test_overlap_of_equal_neighbours_is_one() -> None:
    used = membership(torch.tensor([[0, 1], [0, 1], [1, 2]]), 4)
    assert overlap(used) == pytest.approx(0.75)
    assert float(union_size(used, 3)) == 3.0


def test_recent_experts_are_those_of_the_block_before() -> None:
    index = torch.tensor([[[0, 1], [0, 2], [3, 4], [3, 5], [0, 1]]])
    held = recent_experts(membership(index, 6), block=2, keep=1)[0]
    assert held[:2].all()
    assert held[2].tolist() == held[3].tolist() == [True, False, False, False, False, False]
    assert held[4].tolist() == [False, False, False, True, False, False]
    assert recent_experts(membership(index, 6), block=2, keep=6).all()


def test_choice_keeps_the_best_allowed() -> None:
    weights = torch.tensor([[0.4, 0.3, 0.2, 0.1]])
    picked, index = choose(weights, 3, 2, "model", normalised=False, allowed=None)
    assert index.tolist() == [[0, 1]]
    assert torch.allclose(picked, torch.tensor([[0.4, 0.3]]))
    picked, _ = choose(weights, 3, 2, "full_mass", normalised=False, allowed=None)
    assert float(picked.sum()) == pytest.approx(0.9)
    allowed = torch.tensor([False, True, False, True])
    picked, index = choose(weights, 3, 2, "model", normalised=True, allowed=allowed)
    assert index.tolist() == [[1, 3]]
    assert torch.allclose(picked, torch.tensor([[0.75, 0.25]]))
    picked, index = choose(
        weights, 3, 2, "model", normalised=True, allowed=torch.tensor([False, True, False, False])
    )
    assert (index[0, 0], picked.tolist()) == (1, [[1.0, 0.0]])


@pytest.mark.parametrize(("events", "trials"), [(0, 10), (3, 50), (17, 900), (50, 50)])
def test_the_bound_is_clopper_and_pearsons(events: int, trials: int) -> None:
    expected = 1.0 if events == trials else beta.ppf(0.95, events + 1, trials - events)
    assert upper_bound(events, trials) == pytest.approx(expected, abs=1e-9)


def test_trust_begins_at_the_smallest_confidence_that_is_safe() -> None:
    judged = [(0.99, True)] * 300 + [(0.9, True)] * 300 + [(0.9, False)] * 3 + [(0.5, False)] * 100
    found = calibrate_trust(judged, eps=0.02)
    assert (found.threshold, found.count) == (0.9, 603)
    assert found.bound is not None
    assert found.bound <= 0.02
    assert found.coverage == pytest.approx(603 / 703)
    assert calibrate_trust(judged[:20], eps=0.02) == NOTHING


def test_rounds_tell_what_another_length_or_stop_would_have_given() -> None:
    rounds = Rounds([Round((0.9, 0.8, 0.2, 0.9), 2), Round((0.9, 0.9, 0.9, 0.9), 4)])
    assert rounds.text() == [(0.9, True), (0.8, True), (0.2, False), *[(0.9, True)] * 5]
    assert play(rounds.text(), Rule(4)) == [(3, 4), (5, 4)]
    assert play(rounds.text(), Rule(1)) == [(2, 1), (1, 1), (2, 1), (2, 1), (2, 1)]
    assert play(rounds.text(), Rule(4, stop=0.5)) == [(3, 3), (5, 4)]
    assert rounds.judged()[:3] == [(0.9, True), (0.8, True), (0.2, False)]


def test_following_doubles_and_cuts() -> None:
    text = Rounds([Round((0.9,) * 4, 1), Round((0.9,) * 16, 16)])
    assert play(text.text(), Rule(8, follow=True)) == [(2, 8), (2, 1), (3, 2), (5, 4), (8, 7)]
    pace = Pace(8, follow=True)
    pace.learn([8, 8], [2, 3])
    assert pace.now == 3
    pace.learn([3, 3], [0, 3])
    assert pace.now == 6
    pace.learn([6], [0])
    assert pace.now == 1
    steady = Pace(8, follow=False)
    steady.learn([8], [0])
    assert steady.now == 8


def test_trusted_drafts_pass_and_do_not_end_a_round() -> None:
    rounds = Rounds([Round((0.9, 0.9, 0.99), 2), Round((0.5, 0.9), 0)])
    assert rounds.text() == [(0.9, True), (0.9, True), (0.99, False), (0.5, False)]
    assert play(rounds.text(), Rule(2, threshold=0.95)) == [(3, 2), (1, 1)]
    assert play(rounds.text(), Rule(4, threshold=0.95)) == [(4, 4)]
    assert play(rounds.text(), Rule(1, threshold=0.8, window=2)) == [(3, 2), (1, 1)]


def test_predicted_speedup_is_emitted_over_measured_seconds() -> None:
    costs = RoundCosts(10.0, 1.0, Curve((1, 2, 3), (10.0, 14.0, 18.0), steep=True))
    profile = Profile(Rounds(), costs, {2: 1.0, 3: 1.0}, 1)
    assert profile.speedup([(2, 1)]) == pytest.approx(20 / 15)
    assert profile.speedup([(2, 1), (1, 2)]) == pytest.approx(30 / (15 + 20))
    assert costs.verify(1) == 10.0
    assert costs.verify(5) == 26.0
    assert replace(profile, costs=costs.scaled(2.0)).speedup([(2, 1)]) == pytest.approx(10 / 15)

"""The parts of a search inside a decoding, by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ssd_infer.engine.sampling import SamplingParams
from ssd_infer.engine.sublayers import SkipSet
from ssd_infer.engine.target import Target
from ssd_infer.strategies.skip_layers.episode import Episode, StopRules
from ssd_infer.strategies.skip_layers.online import AcceptanceDrop, Belief, Proposer, Reach, RunningGain
from ssd_infer.tuning.calibration_text import CalibrationSet, Scores, write_calibration_set
from tests.conftest import ModelFactory
from tests.strategies.skip_layers.test_dp import flat_costs


def test_matchness_of_a_hand_made_sequence(tiny_model: ModelFactory) -> None:
    """Five positions, three on which the skipped model chooses what the full one chose."""
    model = tiny_model()
    material = write_calibration_set(Target.of(model), [[2, 3, 4]], SamplingParams(), 6)
    material.reference = torch.tensor([[5, 6, 7, 8, 9]])
    logits = torch.nn.functional.one_hot(torch.tensor([[5, 1, 7, 8, 2]]), 97).float() * 20
    assert material.compare(logits).mean == pytest.approx(3 / 5)


class FakeMaterial:
    """Score candidates by a rule instead of a model."""

    def __init__(self, scores: list[float]) -> None:
        self.scores = iter(scores)
        self.target = self.session = self.sampler = self
        self.layers: list[Any] = []
        self.greedy = True

    def score(self, _view: Any) -> Scores:
        level = next(self.scores)
        bits = (torch.arange(20) < round(level * 20)).float()[None]
        return Scores(bits, torch.full((1, 20), 0.99))


def episode(scores: list[float], rules: StopRules, seeds: int = 0) -> Episode:
    proposer = Proposer(6, (0.5,), 25, seed=0, seeds=[SkipSet.of([1], [])] * seeds)
    material: Any = FakeMaterial(scores)
    return Episode(material, proposer, flat_costs(6), rules, (2,), (0.0,))


def test_the_best_candidate_is_adopted_and_failures_are_counted() -> None:
    found = episode([0.5, 0.4, 0.3, 0.9], StopRules(0.95, 300, 1000))
    assert [found.score(found.next()) for _ in range(3)] == [True, False, False]
    assert found.failures == 2
    assert found.score(found.next())
    assert (found.matchness, found.failures, found.trials) == (pytest.approx(0.9), 0, 4)


@pytest.mark.parametrize(
    ("rules", "expected"),
    [(StopRules(0.95, 2, 99), 4), (StopRules(0.95, 99, 3), 3), (StopRules(0.45, 99, 99), 1)],
)
def test_stop_rules(rules: StopRules, expected: int) -> None:
    found = episode([0.5] + [0.3] * 20, rules)
    while not found.over:
        found.score(found.next())
    assert found.trials == expected


def test_a_good_score_waits_for_the_seeds() -> None:
    found = episode([1.0] * 9, StopRules(0.9, 99, 99), seeds=3)
    while not found.over:
        found.score(found.next())
    assert found.trials == 3


def test_candidates_keep_first_and_last_layer_and_their_size() -> None:
    proposer = Proposer(8, (0.5,), 25, seed=3)
    for _ in range(60):
        skips = proposer.next()
        assert len(skips) == 6
        assert not {0, 7} & (skips.attention | skips.mlp)


def test_every_25th_candidate_is_the_posteriors() -> None:
    proposer = Proposer(6, (0.5,), 5, seed=0)
    harmless = {(2, "mlp"), (3, "attention"), (4, "mlp"), (1, "attention")}
    for turn in range(1, 61):
        skips = proposer.next()
        chosen = {(i, "attention") for i in skips.attention} | {(i, "mlp") for i in skips.mlp}
        if turn == 60:
            assert chosen == harmless
        proposer.learn(skips, 1.0 - 0.2 * len(chosen - harmless))


def test_a_candidate_put_back_does_not_count_as_a_turn() -> None:
    """However often there is no time, the posterior proposes every `bayes_every`-th scored candidate."""
    found = episode([0.5] * 9, StopRules(0.95, 99, 99))
    for turn in range(1, 5):
        for _ in range(7):
            found.put_back(found.next())
        found.score(found.next())
        assert found.proposer.turn == turn


def test_belief_recovers_effects() -> None:
    belief, generator = Belief(6), torch.Generator().manual_seed(0)
    for _ in range(200):
        bits = (torch.rand(6, generator=generator) < 0.5).tolist()
        belief.learn(bits, 0.9 - 0.3 * bits[2] - 0.1 * bits[4])
    order = belief.upper().argsort().tolist()
    assert order[:2] == [2, 4]


def test_seeds_skip_what_changes_least() -> None:
    states = [torch.tensor([[[1.0, 0.0]]])]
    for turn in (0.0, 0.0, 0.3, 0.01, 0.02, 0.5, 0.0, 0.0):  # angle each of 8 sublayers turns the state by
        angle = torch.atan2(states[-1][0, 0, 1], states[-1][0, 0, 0]) + turn
        states.append(torch.stack([angle.cos(), angle.sin()]).view(1, 1, 2))
    proposer = Proposer(4, (0.5,), 25, seed=0)
    proposer.plant(states)
    exit_first = SkipSet.of([1, 2, 3], [1, 2, 3])
    assert proposer.seeds == [exit_first, SkipSet.of([2], [1]), SkipSet.of([1], [1])]


def test_running_gain_forgets_its_prediction() -> None:
    gain = RunningGain(accepted=3.0, drafted=4.0)
    assert gain.per_round == (3.0, 4.0)
    for _ in range(60):
        gain.learn(1.0, 2.0)
    assert gain.per_round == (pytest.approx(1.0, abs=0.02), pytest.approx(2.0, abs=0.02))


def test_drafts_go_little_further_than_rounds_accept() -> None:
    reach = Reach(most=8, expected=2.0)
    assert reach.length == 5
    for _ in range(12):
        reach.learn(accepted=0, drafted=reach.length)
    assert reach.length == 2, "a failing set costs little"
    lengths = []
    for _ in range(4):
        reach.learn(accepted=reach.length, drafted=reach.length)
        lengths.append(reach.length)
    assert lengths == [4, 8, 8, 8], "and is back at once where it holds"


def test_a_fall_of_acceptance_is_noticed_once() -> None:
    drop = AcceptanceDrop()
    steady = [drop.learn(9, 10) for _ in range(50)]
    fallen = [drop.learn(4, 10) for _ in range(40)]
    assert not any(steady)
    assert sum(fallen) == 1
    assert not drop.learn(0, 0)


def test_material_follows_rows(tiny_model: ModelFactory) -> None:
    model = tiny_model()
    material: CalibrationSet = write_calibration_set(
        Target.of(model), [[2, 3], [4, 5, 6], [7]], SamplingParams(), 6
    )
    starts, ids = list(material.starts), material.ids.clone()
    with torch.inference_mode():
        material.session.keep_rows([0, 2])
        material.keep_rows([0, 2])
    assert material.starts == [starts[0], starts[2]]
    assert torch.equal(material.ids, ids[[0, 2]])
    assert material.score(material.target.layers).mean == 1.0

"""Dynamic exit and length: exact, lawful, statistics as in the paper."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import ssd_infer
from ssd_infer.engine.session import Feedback
from ssd_infer.engine.target import Target
from ssd_infer.errors import ConfigError
from ssd_infer.strategies.early_exit.early_exit_del import EarlyExitDel
from ssd_infer.strategies.early_exit.exit_calibration import ExitProfile, remember
from ssd_infer.strategies.early_exit.shadow import ShadowCounts, Shadows, up_to_first_mismatch
from ssd_infer.tuning.costs import Costs
from ssd_infer.tuning.sublayer_costs import remember_costs
from tests.conftest import FAMILIES, ModelFactory, build_model
from tests.engine import test_sampling_law as sampling
from tests.engine.test_exactness import prompts, reference
from tests.strategies.skip_layers.test_dp import flat_costs

NAME, NEW = "early_exit+del", 24


def prepare(model: Any, layers: int, step: float = 0.0, do_sample: bool = False) -> Any:
    """Pretend that verifying is flat, so that drafting pays."""
    target = Target.of(model)
    for batch in (1, 8, 64):
        remember_costs(target, flat_costs(layers, 1.0, 1.0, step), do_sample, batch)
    promise(target, 0.95, do_sample)
    return model


def promise(target: Target, level: float, do_sample: bool) -> None:
    """Let calibration believe that every exit is accepted with probability `level`."""
    table = torch.full((2, 1, 200), level)
    costs = Costs((1, 17), (1.0, 1.0), (0.1, 0.1), target.num_layers)
    remember(target, ExitProfile(table, table, costs, do_sample=do_sample))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("params", [{}, {"exits": [1, 2, 4], "gamma": 6, "stop": False}])
def test_identical_alone_and_in_a_ragged_batch(
    tiny_model: ModelFactory, family: str, params: dict[str, Any]
) -> None:
    changes = {"sliding_window": 16} if family == "mistral" else {}
    model = prepare(tiny_model(family, layers=6, vocab_size=29, initializer_range=0.1, **changes), 6)
    rows = prompts(8, 29)
    expected = reference(model, rows, NEW)
    batch = ssd_infer.generate(model, rows, draft=NAME, draft_params=params, max_new_tokens=NEW)
    assert batch.sequences == expected
    assert batch.stats.total.drafted > 0
    for row, text in zip(rows[:2], expected, strict=False):
        alone = ssd_infer.generate(model, [row], draft=NAME, draft_params=params, max_new_tokens=NEW)
        assert alone.sequences == [text]


@pytest.mark.parametrize("settings", sampling.SETTINGS)
def test_follows_the_enumerated_law(settings: dict[str, Any]) -> None:
    model = prepare(
        build_model(layers=3, vocab_size=sampling.VOCAB, initializer_range=0.12), 3, do_sample=True
    )
    assert sampling.p_value(model, settings, NAME, {"exits": [1, 2], "gamma": 2}) > 1e-3


def test_shadow_tokens_are_those_the_exits_would_draft(
    tiny_model: ModelFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recompute every round's counts with the model's own hidden states."""
    model = tiny_model(layers=6, vocab_size=29)
    with torch.no_grad():
        for layer in model.model.layers[1:]:
            layer.self_attn.o_proj.weight.mul_(0.3)
            layer.mlp.down_proj.weight.mul_(0.3)
    prepare(model, 6)  # costs of these weights, so that what is drafted does not depend on the machine
    prompt = prompts(1, 29)[0]
    original, checked = EarlyExitDel.observe, []

    def check(self: EarlyExitDel, feedback: Feedback) -> None:
        before = {layer: counts.matched for layer, counts in self.shadows.counts.items()}
        start = self.session.lengths[0]
        tokens = self.session.rows[0].tokens + feedback.proposal.tokens[0].tolist()
        states = model(input_ids=torch.tensor([tokens]), output_hidden_states=True).hidden_states
        original(self, feedback)
        width = min(feedback.accepted[0] + 1, feedback.counts[0])
        for layer, counts in self.shadows.counts.items():
            here = model.lm_head(model.model.norm(states[layer]))[0, start : start + width].argmax(-1)
            hits = int((here == feedback.logits[0, :width].argmax(-1)).sum())
            assert counts.matched == pytest.approx(before[layer] * 0.95 + hits)
        checked.append(width)

    monkeypatch.setattr(EarlyExitDel, "observe", check)
    params = {"exits": [1, 3, 5], "gamma": 5, "stop": False}
    ssd_infer.generate(model, [prompt], draft=NAME, draft_params=params, max_new_tokens=NEW)
    assert len(checked) > 2


def test_statistics_stop_at_the_first_mismatch() -> None:
    counted = up_to_first_mismatch([0, 2, 4], [4, 4, 4], 4)
    assert counted.tolist() == [[True, False, False, False], [True, True, True, False], [True] * 4]
    assert up_to_first_mismatch([1], [1], 4).tolist() == [[True, False, False, False]]
    shadows = Shadows((2, 4), 0.9)
    hits = torch.tensor([[[1.0, 0.0, 1.0, 1.0]], [[0.0, 1.0, 1.0, 1.0]]])
    confidence = torch.tensor([[[0.9, 0.3, 0.8, 0.8]], [[0.2, 0.6, 0.8, 0.8]]])
    shadows.learn(hits, confidence, up_to_first_mismatch([1], [4], 4))
    assert [shadows.counts[layer].acceptance for layer in (2, 4)] == [0.5, 0.5]
    assert shadows.counts[2].threshold == pytest.approx((0.9 + 0.3) / 2)
    shadows.fade()
    assert shadows.counts[4].matched == pytest.approx(0.9)
    assert shadows.counts[4].acceptance == 0.5


def test_the_best_exit_and_length_of_a_made_up_table() -> None:
    shadows = Shadows((2, 4), 0.95)
    shadows.counts[2].add(6.0, 4.0, 0.0, 0.0)
    shadows.counts[4].add(9.0, 1.0, 0.0, 0.0)
    cost, verify = [0.3, 0.5], [[1.0] * 6, [1.0] * 6]
    choice = shadows.choose(cost, verify)
    table = {
        (e, g): (1 - a ** (g + 1)) / (1 - a) / (g * c + 1.0)
        for e, a, c in ((2, 0.6, 0.3), (4, 0.9, 0.5))
        for g in range(1, 7)
    }
    assert (choice.exit_layer, choice.gamma) == max(table, key=table.__getitem__)
    assert choice.speedup == pytest.approx(max(table.values()))
    shadows.counts[4].add(0.0, 90.0, 0.0, 0.0)
    assert shadows.choose(cost, verify).exit_layer == 2


def test_unknown_thresholds_stop_nothing() -> None:
    assert ShadowCounts().threshold == 0.0
    assert ShadowCounts(matched=3.0, sure_matched=2.0).threshold == 0.0


def test_without_a_gain_only_probes_are_drafted(tiny_model: ModelFactory) -> None:
    model, rows = prepare(tiny_model(layers=4), 4, step=1e4), prompts(1, 97)
    out = ssd_infer.generate(model, rows, draft=NAME, draft_params={"gamma": 1}, max_new_tokens=60)
    assert out.sequences == reference(model, rows, 60)
    assert 1 <= out.stats.total.drafted <= 60 / 16
    assert out.stats.report["rounds_without_draft"] > 40


def test_the_exit_follows_the_text(tiny_model: ModelFactory) -> None:
    """Silent layers after the second make exit 2 perfect; it must be the one in use."""
    model = prepare(tiny_model(layers=6), 6)
    with torch.no_grad():
        for layer in model.model.layers[2:]:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    out = ssd_infer.generate(
        model, prompts(1, 97), draft=NAME, draft_params={"exits": [1, 2, 3]}, max_new_tokens=60
    )
    assert all(key.startswith("exit 2") for key in out.stats.report["used"])
    assert out.stats.total.alpha == 1.0


@pytest.mark.parametrize(
    ("params", "key"),
    [({"exits": [6]}, "exits"), ({"exits": []}, "exits"), ({"omega": 0.0}, "omega"), ({"gamma": 0}, "gamma")],
)
def test_bad_parameters_name_the_key(tiny_model: ModelFactory, params: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=f"draft_params.{key}"):
        ssd_infer.generate(tiny_model(), [[2, 3]], draft=NAME, draft_params=params, max_new_tokens=4)


def test_falls_back_to_plain_decoding_where_no_exit_gains() -> None:
    model = build_model(layers=4)
    for level, drafting in ((0.0, False), (0.95, True)):
        promise(Target.of(model), level, True)
        out = ssd_infer.generate(model, [[2, 3]], draft=NAME, max_new_tokens=6, do_sample=True, seed=0)
        assert (out.draft is not None) == drafting
        assert ("plain decoding" in out.note) != drafting

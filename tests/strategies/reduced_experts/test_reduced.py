"""The draft `reduced_experts`: exact in every family, a target left alone, a lossy mode that says so."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import ssd_infer
from ssd_infer.engine.laws import Law, Scored
from ssd_infer.engine.target import Target
from ssd_infer.errors import ConfigError
from ssd_infer.strategies.reduced_experts import expert_calibration as calibration
from ssd_infer.strategies.reduced_experts.expert_calibration import Candidate
from ssd_infer.strategies.reduced_experts.expert_costs import WIDTHS
from ssd_infer.strategies.reduced_experts.expert_views import reduced_view
from ssd_infer.strategies.reduced_experts.reduced_experts import (
    AdaptiveExperts,
    ReducedExperts,
    ReducedExpertsParams,
)
from tests.conftest import build_model
from tests.engine import test_sampling_law as sampling
from tests.offload.support import EXPERTS, FAMILIES, TOP_K, build_moe, greedy

ROWS = [[3, 4, 5, 6, 7], [9, 8], [11, 12, 13]]


def run(
    model: Any, rows: list[list[int]], draft: str = "reduced_experts", new: int = 16, **params: Any
) -> Any:
    settings = {"k_draft": 2, "gamma": 4} | params
    return ssd_infer.generate(model, rows, draft=draft, draft_params=settings, max_new_tokens=new)


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> tuple[Any, list[list[int]]]:
    """A model of each family and its greedy text."""
    model = build_moe(request.param)
    return model, greedy(model, ROWS)


@pytest.mark.parametrize("renorm", ["model", "full_mass"])
@pytest.mark.parametrize("k_draft", [1, 2])
def test_identical_alone_and_in_a_ragged_batch(
    family: tuple[Any, list[list[int]]], k_draft: int, renorm: str
) -> None:
    model, expected = family
    out = run(model, ROWS, k_draft=k_draft, renorm=renorm)
    assert out.sequences == expected
    assert out.stats.total.drafted > 0
    assert run(model, ROWS[:1], k_draft=k_draft, renorm=renorm, confidence=0.3).sequences == expected[:1]


def test_all_experts_accept_everything(family: tuple[Any, list[list[int]]]) -> None:
    model, expected = family
    for renorm in ("model", "full_mass"):
        out = run(model, ROWS, k_draft=TOP_K, renorm=renorm)
        assert out.sequences == expected
        assert out.stats.total.alpha == 1.0


def test_ends_inside_an_accepted_block() -> None:
    model = build_moe()
    eos = greedy(model, ROWS[:1])[0][2]
    expected = greedy(model, ROWS, eos=eos)
    out = ssd_infer.generate(
        model,
        ROWS,
        draft="reduced_experts",
        draft_params={"k_draft": TOP_K, "gamma": 7},
        max_new_tokens=16,
        eos_token_id=eos,
    )
    assert out.sequences == expected
    assert run(model, ROWS, new=3, k_draft=TOP_K, gamma=7).sequences == [
        row[:3] for row in greedy(model, ROWS)
    ]


def test_unsorted_routers_keep_their_best_experts() -> None:
    """DeepSeek's top-k is not sorted: the first of its k indices would be any of them."""
    model = build_moe("deepseek_v2")
    target = Target.of(model)
    gate = target.layers[1].mlp.gate
    view = reduced_view(target, 2)
    hidden = torch.randn(50, 32, dtype=torch.float64)
    _, weights, index = view[1].mlp.gate(hidden)
    scores = (hidden.float() @ gate.weight.float().t()).softmax(-1)
    assert torch.equal(index.sort(-1).values, scores.topk(2, dim=-1).indices.sort(-1).values)
    assert torch.allclose(weights, scores.gather(1, index).to(weights.dtype) * gate.routed_scaling_factor)


def test_full_mass_keeps_the_mass_of_all_k() -> None:
    model = build_moe("olmoe")
    target = Target.of(model)
    hidden = torch.randn(9, 32, dtype=torch.float64)
    full = target.layers[0].mlp.gate(hidden)[1].sum(-1)
    for renorm, same in (("full_mass", True), ("model", False)):
        kept = reduced_view(target, 1, renorm)[0].mlp.gate(hidden)[1].sum(-1)  # type: ignore[arg-type]
        assert torch.allclose(kept, full) is same


@pytest.mark.parametrize("settings", sampling.SETTINGS[:2])
def test_sampling_follows_the_enumerated_law(settings: dict[str, Any]) -> None:
    model = build_moe(layers=2, vocab_size=sampling.VOCAB, initializer_range=0.12, dtype=torch.float32)
    assert sampling.p_value(model, settings, "reduced_experts", {"k_draft": 1, "gamma": 2}) > 1e-3


def test_the_target_is_left_alone_after_an_exception_and_between_generations() -> None:
    model = build_moe()
    target, expected = Target.of(model), greedy(model, ROWS)
    modules = {name: id(module) for name, module in model.named_modules()}
    view = reduced_view(target, 1)
    own = {id(weight) for weight in model.parameters()}
    assert all(id(weight) in own for layer in view for weight in layer.parameters())

    class Stop(Exception):
        pass

    def interrupt(row: int, tokens: list[int]) -> None:
        if row == 0 and tokens:
            raise Stop

    with pytest.raises(Stop):
        ssd_infer.generate(
            model,
            ROWS,
            draft="reduced_experts",
            draft_params={"k_draft": 1, "gamma": 3},
            max_new_tokens=8,
            streamer=interrupt,
        )
    assert {name: id(module) for name, module in model.named_modules()} == modules
    assert all(layer.mlp.gate.top_k == TOP_K for layer in target.layers)
    nested: list[Any] = []

    def interleave(row: int, tokens: list[int]) -> None:
        if not nested:
            nested.append(run(model, ROWS, k_draft=2))

    outer = ssd_infer.generate(
        model,
        ROWS,
        draft="reduced_experts",
        draft_params={"k_draft": 1, "gamma": 3},
        max_new_tokens=16,
        streamer=interleave,
    )
    assert outer.sequences == nested[0].sequences == expected


def test_nothing_trusted_equals_the_lossless_mode() -> None:
    model = build_moe()
    out = run(model, ROWS, "reduced_experts+adaptive", tau_accept=1.5)
    assert out.sequences == greedy(model, ROWS)
    assert out.stats.report["skipped"] == 0


def test_everything_trusted_emits_the_draft_model() -> None:
    """With τ = 0 all drafts are emitted; each is what the draft says after the full model's keys of the text so far."""
    model = build_moe()
    params = {"k_draft": 1, "tau_accept": 0.0, "max_window": 4}
    out = run(model, ROWS[:1], "reduced_experts+adaptive", **params)
    total = out.stats.total
    assert total.accepted == total.drafted
    report = out.stats.report
    assert report["skipped"] == total.drafted
    text = torch.tensor([ROWS[0] + out.sequences[0]])
    full = model(input_ids=text).logits[0].argmax(-1)
    wrong = sum(int(full[at - 1]) != int(text[0, at]) for at in range(len(ROWS[0]), text.shape[1]))
    assert report["disagreement"] == pytest.approx(wrong / report["emitted"], abs=1 / report["emitted"])
    assert wrong > 0


def test_streams_what_it_returns_and_takes_nothing_back() -> None:
    model = build_moe()
    streamed: dict[int, list[int]] = {row: [] for row in range(len(ROWS))}
    out = ssd_infer.generate(
        model,
        ROWS,
        draft="reduced_experts+adaptive",
        draft_params={"k_draft": 1, "gamma": 3, "tau_accept": 0.1},
        max_new_tokens=16,
        streamer=lambda row, tokens: streamed[row].extend(tokens),
    )
    assert [streamed[row] for row in range(len(ROWS))] == out.sequences


def test_only_the_lossless_mode_claims_to_be() -> None:
    assert ReducedExperts.claims(ReducedExpertsParams())
    assert not ReducedExperts.claims(ReducedExpertsParams(mode="adaptive"))
    assert not AdaptiveExperts.claims(AdaptiveExperts.Params())


def test_auto_settles_everything_and_stays_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ssd_infer.strategies.reduced_experts.expert_calibration._NEW_TOKENS", 24)
    model = build_moe(dtype=torch.float32)
    for draft in ("reduced_experts", "reduced_experts+adaptive"):
        out = ssd_infer.generate(model, ROWS[:1], draft=draft, max_new_tokens=12)
        assert "predicted" in out.note
        if draft == "reduced_experts" or out.draft is None:
            assert out.sequences == greedy(model, ROWS[:1], 12)


@pytest.mark.parametrize(("measured", "drafts"), [(0.97, False), (1.2, True)])
def test_a_promise_is_raced_against_plain_decoding(
    monkeypatch: pytest.MonkeyPatch, measured: float, drafts: bool
) -> None:
    monkeypatch.setattr("ssd_infer.strategies.reduced_experts.expert_calibration._NEW_TOKENS", 24)
    monkeypatch.setattr(
        "ssd_infer.strategies.reduced_experts.expert_calibration.Profile.speedup", lambda *_: 3.0
    )
    monkeypatch.setattr(
        "ssd_infer.strategies.reduced_experts.expert_calibration.raced_speedups",
        lambda _t, _s, entrants, *_: [measured] * len(entrants),
    )
    model = build_moe(dtype=torch.float32)
    out = ssd_infer.generate(model, ROWS[:1], draft="reduced_experts", max_new_tokens=12)
    assert (out.draft == "reduced_experts") is drafts
    assert f"measured {measured:.2f}×" in out.note
    assert out.note.startswith("auto" if drafts else "plain decoding")
    assert out.sequences == greedy(model, ROWS[:1], 12)


@pytest.mark.parametrize(
    ("params", "key"),
    [
        ({"k_draft": TOP_K + 1}, "k_draft"),
        ({"k_draft": 0}, "k_draft"),
        ({"gamma": 0}, "gamma"),
        ({"eps": 0.0}, "eps"),
        ({"confidence": 1.0}, "confidence"),
        ({"tau_accept": -0.1}, "tau_accept"),
        ({"tau_accept": math.nan}, "tau_accept"),
        ({"k_draft": 1.5}, "k_draft: must be an integer or 'auto'"),
        ({"mode": "fast"}, "mode: must be 'lossless' or 'adaptive'"),
    ],
)
def test_bad_parameters_are_named(params: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=f"draft_params.{key}"):
        run(build_moe(layers=2), ROWS, **params)


def test_a_dense_model_is_refused_in_words() -> None:
    with pytest.raises(ConfigError, match="no routed experts"):
        run(build_model(), ROWS)


def test_offloading_is_no_part_of_it(tmp_path: Path) -> None:
    """`at_hand` means nothing where every expert is in memory."""
    model = build_moe()
    out = run(model, ROWS, at_hand=True)
    assert out.sequences == greedy(model, ROWS)
    assert out.draft_params["at_hand"] is False


def test_the_best_predictions_are_raced_and_the_fastest_decodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Predictions do not see what reading ahead pushes out of memory, so candidates have to show their speed."""
    speeds = {(2, True): 0.9, (1, True): 1.3, (2, False): 1.1, (1, False): 1.4}
    raced = []

    def measured(_t: Any, _s: Any, entrants: list[ReducedExpertsParams], *_: Any) -> list[float]:
        raced.append([(params.k_draft, params.prefetch) for params in entrants])
        return [speeds[key] for key in raced[-1]]  # type: ignore[index]

    monkeypatch.setattr("ssd_infer.strategies.reduced_experts.expert_calibration.raced_speedups", measured)
    order = [(2, True), (1, True), (2, False), (1, False), (4, True), (4, False)]
    found = [
        Candidate(2.0 - at / 10, ReducedExpertsParams(k_draft=k_draft, prefetch=way), "")
        for at, (k_draft, way) in enumerate(order)
    ]
    target = Target.of(build_moe())
    resolved = calibration._decide(target, found[::-1], ROWS, False).params
    assert raced == [order[:4]]
    assert (resolved.k_draft, resolved.prefetch) == (1, False)
    hopeless = [Candidate(0.9, ReducedExpertsParams(k_draft=1, prefetch=True), "")]
    assert calibration._decide(target, hopeless, ROWS, False).params is None
    assert len(raced) == 1


def test_costs_come_from_all_texts_and_real_rounds() -> None:
    """Every width is timed, a wider pass never costs less, and rounds cost more than their passes."""
    model = build_moe(dtype=torch.float32)
    params = ReducedExpertsParams(k_draft=1, gamma=4, at_hand=False)
    profile = calibration.make_profile(Target.of(model), params, ROWS, False)
    verify = profile.costs.verify
    assert (*verify.at, *profile.unions) == (1, *WIDTHS, *WIDTHS)
    assert list(verify.seconds[1:]) == sorted(verify.seconds[1:])
    unions = list(profile.unions.values())
    assert TOP_K <= unions[0] <= unions[-1] <= EXPERTS
    excess = verify(1) / profile.costs.plain
    assert excess > 0.5
    assert profile.speedup([(1, 0)]) == pytest.approx(1 / excess)


def test_a_draft_is_as_sure_as_its_lead() -> None:
    """Two likely tokens are a tie, and one that is unlikely but far ahead of the others is none."""
    drafter = ReducedExperts.__new__(ReducedExperts)
    logits = torch.tensor([[3.0, 3.0, -9.0], [0.0, -2.0, -2.0]])
    assert drafter._top(Scored(logits), None).tolist() == pytest.approx([0.0, 1 - math.exp(-2)])
    q = torch.tensor([[0.5, 0.5, 0.0], [0.8, 0.1, 0.1]])
    assert drafter._top(Scored(logits), Law(q)).tolist() == pytest.approx([0.5, 0.8])


def test_a_head_of_one_token_leads_no_rival_and_stays_exact(family: tuple[Any, list[list[int]]]) -> None:
    model, expected = family
    out = run(model, ROWS, k_draft=1, gamma=2, confidence=0.3, head="static", head_size=1)
    assert out.sequences == expected
    assert out.stats.total.drafted > 0


def test_gamma_follows_what_was_accepted() -> None:
    model = build_moe()
    full = run(model, ROWS[:1], k_draft=TOP_K, gamma=8, follow=True, new=24)
    assert full.stats.total.alpha == 1.0
    out = run(model, ROWS[:1], k_draft=1, gamma=8, follow=True, new=24)
    fixed = run(model, ROWS[:1], k_draft=1, gamma=8, follow=False, new=24)
    assert out.sequences == fixed.sequences == full.sequences
    assert out.stats.total.drafted < fixed.stats.total.drafted


def test_lossy_figures_count_no_token_past_a_budget() -> None:
    """Rows of a batch use up their budgets at different passes; what is cut off a block was not emitted."""
    model = build_moe()
    for new in range(3, 13):
        params = {"tau_accept": 0.3, "max_window": 6, "k_draft": 1}
        out = run(model, [[3, 4, 5], [9, 8], [7], [11, 12]], "reduced_experts+adaptive", new, **params)
        assert out.stats.report["emitted"] == sum(
            after - before
            for row in out.stats.rows
            for (before, drafted, _), (after, _, _) in pairwise([*row.trace, (row.emitted, 0, 0)])
            if drafted
        )
        assert out.stats.report["skipped"] <= out.stats.total.accepted

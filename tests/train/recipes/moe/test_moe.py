"""The recipe `moe`: routers, losses, a step, and the run around it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ssd_infer.config.checks import Checks
from ssd_infer.errors import ConfigError, UnsupportedModelError
from ssd_train import run
from ssd_train.config.rules_inputs import check_model
from ssd_train.config.schema import OptimConfig, Root, ScratchMoeConfig
from ssd_train.losses.routing import expected_union, expert_choices, expert_load, load_balance
from ssd_train.models import build as models
from ssd_train.models.exits import ExitModel
from ssd_train.recipes.base import StepContext
from ssd_train.recipes.moe.recipe import MoeRecipe
from ssd_train.recipes.moe.routers import Routers
from ssd_train.recipes.moe.settings import MoeConfig
from ssd_train.recipes.registry import build, check_recipe
from tests.train.support import VOCAB, tiny_llama, tiny_root, tokens, with_train


def tiny_moe(family: str = "qwen3_moe", **changes: Any) -> Any:
    """Return a three-layer mixture of eight experts, four a token."""
    cfg = ScratchMoeConfig(
        family=family,
        num_layers=3,
        hidden_size=32,
        intermediate_size=16,
        num_heads=4,
        num_kv_heads=2,
        max_length=128,
        vocab_size=VOCAB,
        num_experts=8,
        init_std=0.2,
        **changes,
    )
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(models.scratch_config(cfg))


def moe_root(directory: Path, **changes: Any) -> Root:
    model = ScratchMoeConfig(
        num_layers=3,
        hidden_size=32,
        intermediate_size=32,
        num_heads=4,
        num_kv_heads=2,
        max_length=64,
        vocab_size=300,
        num_experts=8,
    )
    return replace(
        tiny_root(directory), recipe_name="moe", model=model, recipe=MoeConfig(overlap_weight=0.05, **changes)
    )


def test_even_load_balances_at_k() -> None:
    index = torch.tensor([[0, 1], [2, 3]]).repeat(4, 1)
    load = expert_load(expert_choices(index, 4))
    assert load.tolist() == [0.25] * 4
    assert float(load_balance(torch.full((8, 4), 0.25), load)) == pytest.approx(1.0)
    skewed = torch.tensor([[0.7, 0.1, 0.1, 0.1]]).repeat(8, 1)
    assert float(load_balance(skewed, torch.tensor([0.5, 0.5, 0.0, 0.0]))) > 1.25


def test_balance_of_parts_under_the_load_of_the_whole_is_that_of_the_whole() -> None:
    probs = torch.rand(12, 4, generator=torch.Generator().manual_seed(3)).softmax(-1)
    choices = [expert_choices(part.topk(2).indices, 4) for part in (probs[:4], probs[4:])]
    load = expert_load(choices[0] + choices[1])
    whole = load_balance(probs, expert_load(expert_choices(probs.topk(2).indices, 4)))
    parts = 4 * load_balance(probs[:4], load) + 8 * load_balance(probs[4:], load)
    torch.testing.assert_close(parts / 12, whole)


def test_expected_union_counts_what_neighbours_share() -> None:
    one = torch.nn.functional.one_hot(torch.tensor([[0, 0, 0, 0]]), 4).float()
    four = torch.nn.functional.one_hot(torch.tensor([[0, 1, 2, 3]]), 4).float()
    assert float(expected_union(one, 1, 4)) == pytest.approx(1.0, abs=1e-4)
    assert float(expected_union(four, 1, 4)) == pytest.approx(4.0, abs=1e-4)
    assert float(expected_union(four, 1, 2)) == pytest.approx(2.0, abs=1e-4)


@pytest.mark.parametrize("family", ["qwen3_moe", "olmoe"])
def test_reduced_routers_route_less_and_are_themselves_again(family: str) -> None:
    model = tiny_moe(family).eval()
    routers = Routers(ExitModel(model).layers, model.config.model_type)
    ids = tokens(2)
    plain = model(input_ids=ids).logits
    with routers.reduced(4, "model"):
        assert torch.allclose(model(input_ids=ids).logits, plain, atol=1e-5)
    with routers.reduced(1, "model"), routers.listening() as heard:
        reduced = model(input_ids=ids).logits
    with pytest.raises(IndexError), routers.reduced(2, "model"):
        model(input_ids=ids + VOCAB)
    assert [part.index.shape[-1] for part in heard] == [1, 1, 1]
    assert not torch.allclose(reduced, plain, atol=1e-3)
    assert torch.equal(model(input_ids=ids).logits, plain)


def test_a_step_is_the_sum_of_its_terms() -> None:
    model = tiny_moe()
    config = MoeConfig(k_draft=[2], at_hand=[0.5], overlap_weight=0.1, kl_direction="both", ce_weight=0.3)
    recipe = build(config)
    recipe.prepare(model)
    batch = {"input_ids": tokens(3, 16)}
    out = recipe.step(model, batch, StepContext(0, 10, detailed=True))
    terms = {name: float(value / count) for name, (value, count) in out.loss_terms.items()}
    expected = (
        terms["final_loss"]
        + 0.3 * terms["draft_loss"]
        + 0.5 * terms["draft_forward"]
        + 0.5 * terms["draft_reverse"]
        + config.balance_weight * terms["balance"]
        + 0.1 * terms["expected_union"]
    )
    assert float((out.loss_sum / out.denom).detach()) == pytest.approx(expected, rel=1e-5)
    out.loss_sum.backward()
    grads = [layer.gate.weight.grad for layer in recipe.routers.layers]  # type: ignore[attr-defined]
    assert all(grad is not None and bool(grad.abs().sum() > 0) for grad in grads)
    assert {"router_0_peak_load", "router_2_entropy", "draft_agreement"} <= set(out.metrics)


def test_without_a_draft_loss_no_draft_is_run() -> None:
    recipe, model = build(MoeConfig(ce_weight=0.0, kl_weight=0.0)), tiny_moe()
    recipe.prepare(model)
    out = recipe.step(model, {"input_ids": tokens(2, 16)}, StepContext(0, 10, detailed=True))
    assert set(out.loss_terms) == {"final_loss", "balance", "expected_union"}
    assert "draft_agreement" not in out.metrics


def test_what_a_step_draws_follows_from_seed_and_step() -> None:
    recipe = MoeRecipe(MoeConfig())
    recipe.prepare(tiny_moe())
    drawn = [recipe.draw(StepContext(step, 100, seed=1)) for step in range(60)]
    # The place in the step does not matter: all micro-batches of all processes train the same draft.
    assert drawn == [recipe.draw(StepContext(step, 100, seed=1, sample_offset=step)) for step in range(60)]
    assert {held for _, held in drawn} == {2, 4, 8}
    assert all(k_draft <= held for k_draft, held in drawn)
    assert {k_draft for k_draft, _ in drawn} == {1, 2, 3, 4}


def test_validation_measures_drafts_unions_and_loads() -> None:
    model = tiny_moe()
    recipe = build(MoeConfig())
    recipe.prepare(model)
    found = recipe.evaluate(model.eval(), {"input_ids": tokens(4, 24)}, StepContext(0, 1))
    values = {name: float(value / count) for name, (value, count) in found.items()}
    assert values["union_2"] < values["union_4"] < values["union_8"] <= 8
    assert 0 <= values["draft_k1_agreement"] <= values["draft_k2_agreement"] <= 1
    assert values["tau_sim"] == values["draft_k2_tau"] >= 1
    assert values["router_1_peak_load"] >= 1


def test_dense_models_and_drafts_beyond_k_are_refused(tmp_path: Path) -> None:
    recipe = build(MoeConfig())
    with pytest.raises(UnsupportedModelError, match="no routed experts"):
        recipe.prepare(tiny_llama())
    dense = replace(tiny_root(tmp_path), recipe=MoeConfig())
    with pytest.raises(UnsupportedModelError, match="recipe moe"):
        recipe.check(dense)
    with pytest.raises(ConfigError, match=r"recipe\.k_draft"):
        build(MoeConfig(k_draft=[5])).check(moe_root(tmp_path, k_draft=[5]))


def test_rules_name_every_bad_setting(tmp_path: Path) -> None:
    checks = Checks()
    bad = MoeConfig(k_draft=[0], at_hand=[1.5], renorm="half", kl_weight=-1, block=0, overlap_window=1)
    check_recipe(replace(moe_root(tmp_path), recipe=bad), checks)
    keys = {problem.key for problem in checks.problems}
    assert keys == {"k_draft.0", "at_hand.0", "renorm", "kl_weight", "block", "overlap_window"}


@pytest.mark.parametrize("recipe", ["moe", "layerskip"])
def test_a_run_trains_a_mixture_and_saves_it(tmp_path: Path, recipe: str) -> None:
    cfg = moe_root(tmp_path)
    if recipe == "layerskip":
        cfg = replace(cfg, recipe_name=recipe, recipe=tiny_root(tmp_path).recipe)
    run.train(replace(cfg, train=replace(cfg.train, max_steps=3, save_steps=3)))
    checkpoint = cfg.run_dir / "checkpoints" / "step-3"
    import ssd_infer

    out = ssd_infer.generate(
        ssd_infer.load(checkpoint),
        [[5, 6, 7]],
        draft="reduced_experts",
        draft_params={"k_draft": 1, "gamma": 3},
        max_new_tokens=8,
    )
    assert (
        out.sequences
        == ssd_infer.generate(ssd_infer.load(checkpoint), [[5, 6, 7]], max_new_tokens=8).sequences
    )


@pytest.mark.parametrize("family", ["qwen3_moe", "qwen2_moe", "olmoe"])
def test_a_resumed_run_keeps_its_experts(tmp_path: Path, family: str) -> None:
    """Checkpoints name every expert, the model has stacks of them: resuming must find the one in the other."""
    finals = []
    for name, stops in (("whole", [4]), ("parts", [2, 4])):
        for stop in stops:
            cfg = replace(moe_root(tmp_path), run_name=name, optim=OptimConfig(name="muon"))
            shared = 16 if family == "qwen2_moe" else 0
            cfg.model = replace(cfg.model, family=family, shared_intermediate_size=shared)
            run.train(with_train(cfg, max_steps=stop, save_steps=2, lr_scheduler="constant", warmup_steps=0))
        finals.append(load_file(cfg.run_dir / "checkpoints" / "step-4" / "model.safetensors"))
    assert any("experts" in name for name in finals[0])
    for name, value in finals[0].items():
        assert torch.equal(value, finals[1][name]), name


@pytest.mark.parametrize(
    ("family", "shared", "right"),
    [("qwen2_moe", 16, True), ("qwen2_moe", 0, False), ("qwen3_moe", 16, False), ("qwen3_moe", 0, True)],
)
def test_only_a_family_with_shared_experts_has_one(
    tmp_path: Path, family: str, shared: int, right: bool
) -> None:
    cfg, checks = moe_root(tmp_path), Checks()
    model = replace(cfg.model, family=family, shared_intermediate_size=shared)
    check_model(replace(cfg, model=model), checks)
    keys = {problem.key for problem in checks.problems}
    assert keys == (set() if right else {"shared_intermediate_size"})

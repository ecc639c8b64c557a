"""What the recipes compute, against the model's own outputs and against the formula written out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from ssd_infer.errors import ConfigError, UnsupportedModelError
from ssd_train.losses.weights import normalised_weights
from ssd_train.models.exits import ExitModel
from ssd_train.recipes.base import StepContext, StepOutput
from ssd_train.recipes.layerskip.recipe import exit_term
from ssd_train.recipes.layerskip.settings import EarlyExitConfig, LayerDropoutConfig, LayerSkipConfig
from ssd_train.recipes.plain.recipe import PlainRecipe
from ssd_train.recipes.plain.settings import PlainConfig
from ssd_train.recipes.registry import build, get, infos
from tests.train.support import VOCAB, tiny_llama, tokens

NO_DROPOUT = LayerDropoutConfig(enabled=False)


def tiny(family: str) -> PreTrainedModel:
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        family,
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        initializer_range=0.1,
    )
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    return model


def layerskip_step(
    model: PreTrainedModel, exits: EarlyExitConfig, ids: Tensor, step: int = 0, *, detailed: bool = False
) -> StepOutput:
    recipe = build(LayerSkipConfig(layer_dropout=NO_DROPOUT, early_exit=exits))
    recipe.prepare(model)
    return recipe.step(model.train(), {"input_ids": ids}, StepContext(step, 10, detailed=detailed))


def cross_entropies(model: PreTrainedModel, ids: Tensor) -> list[Tensor]:
    """Return the summed next-token loss of every exit 1..L by output_hidden_states, norm and head."""
    states = model(input_ids=ids, output_hidden_states=True).hidden_states
    normed = [model.model.norm(h) for h in states[1:-1]] + [states[-1]]
    return [
        torch.nn.functional.cross_entropy(
            model.lm_head(h)[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="sum"
        )
        for h in normed
    ]


@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral", "olmo2"])
def test_hook_l_is_the_output_of_layer_l_and_exit_l_predicts_like_the_model(family: str) -> None:
    model, ids = tiny(family).eval(), tokens(2)
    parts = ExitModel(model)
    parts.check()
    with parts.tapping(range(3)) as taps:
        out = model(input_ids=ids, output_hidden_states=True)
    for layer in (0, 1):
        torch.testing.assert_close(taps.layer[layer], out.hidden_states[layer + 1])
    assert taps.final is not None
    torch.testing.assert_close(taps.final, out.hidden_states[3])
    torch.testing.assert_close(parts.head(parts.normed(taps.layer[2])), out.logits)


def test_plain_loss_is_the_models_own() -> None:
    model, ids = tiny_llama().train(), tokens(3)
    recipe = PlainRecipe(PlainConfig(chunk_tokens=7))
    recipe.prepare(model)
    out = recipe.step(model, {"input_ids": ids}, StepContext(0, 1))
    torch.testing.assert_close(out.loss_sum / out.denom, model(input_ids=ids, labels=ids).loss)


def test_layerskip_loss_is_the_weighted_sum_of_the_exits() -> None:
    model, ids = tiny_llama(), tokens(3)
    out = layerskip_step(model, EarlyExitConfig(curriculum="all", e_scale=0.4), ids)
    weights = normalised_weights(range(4), 4, 0.4)
    each = cross_entropies(model, ids)
    torch.testing.assert_close(out.loss_sum, sum(weights[layer] * each[layer] for layer in range(4)))
    for name, layer in (("exit_2_loss", 1), ("exit_3_loss", 2), ("final_loss", 3)):
        num, den = out.loss_terms[name]
        torch.testing.assert_close(num, each[layer])
        assert den == ids[:, 1:].numel()
    # e(0) = 0: nothing is computed for an exit that cannot count.
    assert "exit_1_loss" not in out.loss_terms


def test_every_layer_learns_when_only_the_last_exit_is_on() -> None:
    model = tiny_llama()
    layerskip_step(model, EarlyExitConfig(curriculum="none"), tokens(3)).loss_sum.backward()
    for layer in model.model.layers:
        assert all(parameter.grad.abs().sum() > 0 for parameter in layer.parameters())


def test_rotation_visits_the_configured_exits_in_turn() -> None:
    model, ids = tiny_llama(), tokens(2)
    exits = EarlyExitConfig(exits=[2, 3], period=2)
    names = [set(layerskip_step(model, exits, ids, step).loss_terms) for step in range(3)]
    assert names == [
        {"final_loss", "exit_2_loss"},
        {"final_loss", "exit_3_loss"},
        {"final_loss", "exit_2_loss"},
    ]


def test_distillation_and_agreement_reach_the_terms_they_are_configured_for() -> None:
    settings = EarlyExitConfig(
        ce_weight=0.5, distill_weight=0.4, distill_direction="both", agreement_weight=0.3
    )
    term = exit_term(settings, 0.5)
    assert term.cross_entropy == 0.25
    assert term.divergences == (("forward", 0.1, False), ("reverse", 0.1, False), ("tv", 0.15, True))
    free = exit_term(EarlyExitConfig(ce_weight=0, distill_weight=1, detach_teacher=False), 1.0)
    assert free.divergences == (("forward", 1.0, True),)


def test_detached_teacher_keeps_distillation_out_of_the_layers_above() -> None:
    model, ids = tiny_llama(), tokens(2)
    gradients = {}
    for name, detach in (("detached", True), ("free", False)):
        settings = EarlyExitConfig(exits=[2], period=1, ce_weight=0, distill_weight=1, detach_teacher=detach)
        model.zero_grad()
        layerskip_step(model, settings, ids).loss_sum.backward()
        gradients[name] = model.model.layers[3].mlp.down_proj.weight.grad.clone()
    model.zero_grad()
    weight = normalised_weights([1, 3], 4, 0.2)[3]
    (cross_entropies(model, ids)[3] * weight).backward()
    alone = model.model.layers[3].mlp.down_proj.weight.grad
    torch.testing.assert_close(gradients["detached"], alone, rtol=1e-4, atol=1e-6)
    assert not torch.allclose(gradients["free"], alone, rtol=1e-2)


def test_detached_head_keeps_exits_out_of_norm_and_head() -> None:
    model, ids = tiny_llama(tie_word_embeddings=False), tokens(2)
    layerskip_step(model, EarlyExitConfig(curriculum="all", detach_head=True), ids).loss_sum.backward()
    head, norm = model.lm_head.weight.grad.clone(), model.model.norm.weight.grad.clone()
    model.zero_grad()
    (cross_entropies(model, ids)[3] * normalised_weights(range(4), 4, 0.2)[3]).backward()
    torch.testing.assert_close(head, model.lm_head.weight.grad, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(norm, model.model.norm.weight.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["layerskip", "plain"])
def test_padding_does_not_change_what_a_sequence_contributes(kind: str) -> None:
    config = PlainConfig() if kind == "plain" else LayerSkipConfig(layer_dropout=NO_DROPOUT)
    model, ids = tiny_llama(dtype=torch.float64).train(), tokens(1, 9)
    recipe = build(config)
    recipe.prepare(model)
    alone = recipe.step(model, {"input_ids": ids}, StepContext(1, 10))
    padded = torch.cat([torch.zeros(1, 4, dtype=torch.long), ids], 1)
    mask = torch.cat([torch.zeros(1, 4, dtype=torch.long), torch.ones_like(ids)], 1)
    left = recipe.step(model, {"input_ids": padded, "attention_mask": mask}, StepContext(1, 10))
    labels = padded.masked_fill(mask == 0, -100)
    labels[:, 4] = -100
    labelled = recipe.step(
        model, {"input_ids": padded, "attention_mask": mask, "labels": labels}, StepContext(1, 10)
    )
    for other in (left, labelled):
        assert other.denom == alone.denom == 8
        torch.testing.assert_close(other.loss_sum, alone.loss_sum, rtol=1e-6, atol=1e-6)


def test_evaluation_measures_every_exit() -> None:
    model, ids = tiny_llama().eval(), tokens(3, 12)
    recipe = build(LayerSkipConfig(layer_dropout=NO_DROPOUT))
    recipe.prepare(model)
    found = recipe.evaluate(model, {"input_ids": ids}, StepContext(0, 1))
    each = cross_entropies(model, ids)
    torch.testing.assert_close(found["loss"][0].float(), each[3])
    logits = [
        model.lm_head(model.model.norm(h))
        for h in model(input_ids=ids, output_hidden_states=True).hidden_states[1:-1]
    ]
    final = model(input_ids=ids).logits
    for exit_ in (1, 2, 3):
        torch.testing.assert_close(found[f"exit_{exit_}_loss"][0].float(), each[exit_ - 1])
        agreed = (logits[exit_ - 1].argmax(-1) == final.argmax(-1))[:, :-1]
        assert found[f"exit_{exit_}_agreement"] == (agreed.sum(), agreed.numel())
        starts = [
            1 + sum(bool(row[t : t + k].all()) for k in range(1, 5))
            for row in agreed
            for t in range(len(row) - 3)
        ]
        num, den = found[f"exit_{exit_}_tau"]
        assert (float(num), int(den)) == (pytest.approx(sum(starts)), len(starts))
    assert found["tau_sim"] == found["exit_1_tau"]


def test_agreement_while_training_is_counted_on_logged_steps_only() -> None:
    model, ids = tiny_llama(), tokens(2)
    exits = EarlyExitConfig(exits=[2], period=1)
    assert layerskip_step(model, exits, ids).metrics == {}
    assert set(layerskip_step(model, exits, ids, detailed=True).metrics) == {"exit_2_agreement"}


def test_unsuitable_models_and_exits_are_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match=r"recipe\.early_exit\.exits.*1\.\.3.*\[4\]"):
        build(LayerSkipConfig(early_exit=EarlyExitConfig(exits=[2, 4]))).prepare(tiny_llama())
    with pytest.raises(ConfigError, match="would never be trained"):
        build(LayerSkipConfig(early_exit=EarlyExitConfig(exits=[1, 2]))).prepare(tiny_llama())
    build(LayerSkipConfig(early_exit=EarlyExitConfig(exits=[1, 2], weights="uniform"))).prepare(tiny_llama())
    capped = AutoConfig.for_model(
        "gemma2", vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, final_logit_softcapping=0.5,
    )  # fmt: skip
    with pytest.raises(UnsupportedModelError, match="soft-capping"):
        build(LayerSkipConfig()).prepare(AutoModelForCausalLM.from_config(capped))
    with pytest.raises(UnsupportedModelError, match="decoder layers"):
        ExitModel(torch.nn.Linear(2, 2))


def test_registry_names_match_the_classes() -> None:
    names = ["asr_ctc", "diffusion", "frozen_target", "layerskip", "moe", "plain"]
    assert sorted(infos()) == names
    assert {name: get(name).name for name in names} == {name: name for name in names}
    assert build(LayerSkipConfig()).metadata()["settings"]["early_exit"]["period"] == 8

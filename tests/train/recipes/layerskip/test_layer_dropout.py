"""Dropped samples are not computed; who drops what follows from (seed, step, layer, sample) alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ssd_infer.errors import UnsupportedModelError
from ssd_train.recipes.base import StepContext
from ssd_train.recipes.layerskip.dropout import dropping, survivors, uniforms
from ssd_train.recipes.layerskip.recipe import LayerSkipRecipe
from ssd_train.recipes.layerskip.settings import EarlyExitConfig, LayerDropoutConfig, LayerSkipConfig
from tests.train.support import tiny_llama, tokens


def rows_computed(model: nn.Module) -> list[list[int]]:
    """Return, filled in as `model` runs, the batch sizes each layer's attention sees."""
    seen: list[list[int]] = [[] for _ in model.model.layers]

    def watch(index: int) -> Any:
        def hook(_module: nn.Module, _args: Any, kwargs: dict[str, Tensor]) -> None:
            seen[index].append(kwargs["hidden_states"].shape[0])

        return hook

    for index, layer in enumerate(model.model.layers):
        layer.self_attn.register_forward_pre_hook(watch(index), with_kwargs=True)
    return seen


def by_hand(model: nn.Module, ids: Tensor, kept: list[Tensor | None], mask: Tensor | None = None) -> Tensor:
    """Return the hidden states after every layer when each sample runs alone through the layers it keeps."""
    rows = []
    for row in range(len(ids)):
        chosen = [layer for layer, keep in enumerate(kept) if keep is None or row in keep]
        layers = model.model.layers
        model.model.layers = nn.ModuleList(layers[layer] for layer in chosen)
        model.config.num_hidden_layers = len(chosen)
        attention = None if mask is None else mask[row : row + 1]
        rows.append(model.model(input_ids=ids[row : row + 1], attention_mask=attention, use_cache=False)[0])
        model.model.layers, model.config.num_hidden_layers = layers, len(layers)
    return torch.cat(rows)


KEPT: list[Tensor | None] = [
    None,
    torch.tensor([0, 2]),
    torch.tensor([1]),
    torch.tensor([], dtype=torch.long),
]


@pytest.mark.parametrize("padded", [False, True])
def test_each_sample_passes_through_exactly_the_layers_it_keeps(padded: bool) -> None:
    model, ids = tiny_llama(dtype=torch.float64), tokens(3)
    mask = torch.ones_like(ids) if padded else None
    if mask is not None:
        mask[0, :5] = 0
        mask[2, :2] = 0
    expected = by_hand(model, ids, KEPT, mask)
    seen = rows_computed(model)
    with dropping(model.model.layers, KEPT):
        got = model.model(input_ids=ids, attention_mask=mask, use_cache=False)[0]
    assert seen == [[3], [2], [1], []]
    visible = slice(None) if mask is None else mask.bool()
    torch.testing.assert_close(got[visible], expected[visible], rtol=1e-9, atol=1e-9)


def test_packed_batches_keep_the_maskless_fast_path() -> None:
    model, masks = tiny_llama(), []
    for layer in model.model.layers:
        layer.self_attn.register_forward_pre_hook(
            lambda _module, _args, kwargs: masks.append(kwargs["attention_mask"]), with_kwargs=True
        )
    with dropping(model.model.layers, KEPT):
        model.model(input_ids=tokens(3), use_cache=False)
    assert masks == [None] * 3


def test_a_layer_without_survivors_runs_one_sample_times_zero_when_ranks_must_agree() -> None:
    model, ids = tiny_llama(), tokens(3)
    with dropping(model.model.layers, KEPT):
        skipped = model.model(input_ids=ids, use_cache=False)[0]
    seen = rows_computed(model)
    with dropping(model.model.layers, KEPT, touch_empty=True):
        touched = model.model(input_ids=ids, use_cache=False)[0]
    assert seen[3] == [1]
    torch.testing.assert_close(touched, skipped)
    touched.sum().backward()
    gradients = [parameter.grad for parameter in model.model.layers[3].parameters()]
    assert all(gradient is not None and not gradient.any() for gradient in gradients)


def test_the_model_is_as_before_also_after_an_exception() -> None:
    model, ids = tiny_llama(), tokens(3)
    keys, expected = list(model.state_dict()), model(input_ids=ids).logits
    with dropping(model.model.layers, KEPT):
        assert list(model.state_dict()) == keys
    with pytest.raises(RuntimeError, match="stop"), dropping(model.model.layers, KEPT):
        raise RuntimeError("stop")
    assert all("forward" not in layer.__dict__ for layer in model.model.layers)
    torch.testing.assert_close(model(input_ids=ids).logits, expected)


def test_a_cache_or_ragged_batch_is_refused() -> None:
    model = tiny_llama()
    with dropping(model.model.layers, KEPT), pytest.raises(UnsupportedModelError, match="layer_dropout"):
        model.model(input_ids=tokens(3), use_cache=True)


def test_uniforms_are_a_function_of_their_arguments_alone() -> None:
    first = uniforms(3, 5, 2, 8)
    torch.manual_seed(0)
    assert np.array_equal(first, uniforms(3, 5, 2, 8))
    assert np.array_equal(first[4:], uniforms(3, 5, 2, 4, offset=4))
    for other in ((4, 5, 2), (3, 6, 2), (3, 5, 1)):
        assert not np.array_equal(first, uniforms(*other, 8))
    many = np.concatenate([uniforms(0, step, layer, 50) for step in range(20) for layer in range(20)])
    assert 0 <= many.min() < many.max() < 1
    assert abs(many.mean() - 0.5) < 0.01
    assert abs(np.corrcoef(many[:-1], many[1:])[0, 1]) < 0.02


def test_survivors_have_the_frequency_asked_for() -> None:
    kept = [survivors([0.0, 0.3, 1.0], 0, step, 10) for step in range(300)]
    assert all(row[0] is None and row[2] is not None and row[2].numel() == 0 for row in kept)
    share = np.mean([10 if row[1] is None else row[1].numel() for row in kept]) / 10
    assert share == pytest.approx(0.7, abs=0.03)


def recipe_for(model: nn.Module, p_max: float) -> LayerSkipRecipe:
    recipe = LayerSkipRecipe(
        LayerSkipConfig(
            layer_dropout=LayerDropoutConfig(p_max=p_max, layer_scale="uniform"),
            early_exit=EarlyExitConfig(curriculum="all", distill_weight=0.5),
        )
    )
    recipe.prepare(model)
    return recipe


def test_recomputation_of_activations_draws_the_same_masks() -> None:
    gradients = []
    for recompute in (False, True):
        model = tiny_llama(dtype=torch.float64).train()
        recipe = recipe_for(model, 0.5)
        if recompute:
            enable = (
                getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
            )
            enable({"use_reentrant": False})
        seen = rows_computed(model)
        recipe.step(model, {"input_ids": tokens(4)}, StepContext(3, 10, seed=7)).loss_sum.backward()
        recipe.after_backward()
        assert all("forward" not in layer.__dict__ for layer in model.model.layers)
        gradients.append([parameter.grad for parameter in model.parameters()])
        # A recomputed layer runs twice, on the same number of samples.
        assert all(len(set(rows)) <= 1 and len(rows) in (0, 1 + recompute) for rows in seen)
        assert any(rows and rows[0] < 4 for rows in seen)
    for plain, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, recomputed, rtol=1e-10, atol=1e-12)


def test_training_computes_fewer_rows_and_evaluation_all_of_them() -> None:
    model = tiny_llama().train()
    recipe = recipe_for(model, 0.5)
    seen = rows_computed(model)
    for step in range(6):
        recipe.step(model, {"input_ids": tokens(4)}, StepContext(step, 10))
    computed = sum(sum(rows) for rows in seen)
    assert 0.3 < computed / (6 * 4 * 4) < 0.7
    for rows in seen:
        rows.clear()
    model.eval()
    recipe.evaluate(model, {"input_ids": tokens(4)}, StepContext(6, 10))
    assert seen == [[4]] * 4

"""Products through the faster library: same numbers, shared parameters, an untouched model."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import ssd_infer
from ssd_infer.engine.kernels import products
from ssd_infer.engine.kernels.products import onednn_pays, pays, product, product_view, renew
from ssd_infer.engine.target import Target
from tests.conftest import ModelFactory

needs_onednn = pytest.mark.skipif(products._onednn() is None, reason="this torch was built without oneDNN")


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let oneDNN take every product, whatever its size and this machine; list the rows of each it took."""
    found, rows = products._onednn(), []

    def counted(hidden: Tensor, *rest: Any) -> Tensor:
        rows.append(hidden.numel() // hidden.shape[-1])
        out: Tensor = found(hidden, *rest)
        return out

    monkeypatch.setattr(products, "_WORK", 1)
    monkeypatch.setattr(products, "_onednn", lambda: counted)
    monkeypatch.setattr(products, "onednn_pays", lambda threads: True)
    return rows


@needs_onednn
@pytest.mark.parametrize("shape", [(5,), (1, 5), (3, 7, 5), (2, 1, 4, 5)])
@pytest.mark.parametrize("bias", [False, True])
def test_both_libraries_give_the_same_product(taken: list[int], shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(shape), torch.randn(11, 5)
    added = torch.randn(11) if bias else None
    with torch.inference_mode():
        found = product(hidden, weight, added)
    wanted = functional.linear(hidden.double(), weight.double(), None if added is None else added.double())
    torch.testing.assert_close(found.double(), wanted, atol=1e-5, rtol=0)
    assert len(taken) == 1


@needs_onednn
def test_a_transposed_weight_is_read_in_place(taken: list[int]) -> None:
    """As attention does with values."""
    torch.manual_seed(0)
    probs, values = torch.rand(3, 40), torch.randn(2, 40, 8)[:, :33]
    with torch.inference_mode():
        found = product(probs[:, :33], values[1].T)
    torch.testing.assert_close(found, probs[:, :33] @ values[1], atol=1e-5, rtol=0)
    assert taken


@needs_onednn
def test_gradients_other_types_and_autocast_stay_with_torch(taken: list[int]) -> None:
    weight = nn.Parameter(torch.randn(4, 5))
    product(torch.randn(2, 5), weight).sum().backward()
    assert weight.grad is not None
    with torch.inference_mode():
        product(torch.randn(2, 5, dtype=torch.float64), weight.detach().double())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert product(torch.randn(2, 5), weight).dtype is torch.bfloat16
    assert not taken


def test_small_products_stay_with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "onednn_pays", lambda threads: True)
    with torch.inference_mode():
        assert not pays(torch.randn(2, 5), products._WORK - 1)
        assert pays(torch.randn(2, 5), products._WORK)


@pytest.mark.parametrize("fault", ["wrong", "slow", "absent"])
def test_only_a_faster_library_with_the_right_result_is_taken(
    monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    def other(hidden: Tensor, weight: Tensor, *_: Any) -> Tensor:
        for _ in range(4 if fault == "slow" else 1):
            out = hidden @ weight.T
        return out * 1.001 if fault == "wrong" else out

    monkeypatch.setattr(products, "_onednn", lambda: None if fault == "absent" else other)
    assert not onednn_pays.__wrapped__(1)


def test_the_measurement_prefers_a_faster_library(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = functional.linear

    def slow(hidden: Tensor, weight: Tensor) -> Tensor:
        for _ in range(4):
            out = usual(hidden, weight)
        return out

    monkeypatch.setattr(products.functional, "linear", slow)
    monkeypatch.setattr(products, "_onednn", lambda: lambda hidden, weight, *_: usual(hidden, weight))
    assert onednn_pays.__wrapped__(1)


class Adapter(nn.Linear):
    """A linear layer of another kind."""


def block() -> nn.Module:
    """Return a module with plain, foreign and nested linear layers, in training mode."""
    inner = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
    return nn.ModuleDict({"inner": inner, "adapter": Adapter(8, 8), "norm": nn.LayerNorm(8)}).train()


@needs_onednn
def test_a_view_shares_parameters_and_leaves_the_module_alone(taken: list[int]) -> None:
    module = block()
    view = product_view(module)
    assert type(module["inner"][0]) is nn.Linear
    assert module["inner"].training
    assert not view["inner"].training
    assert view["adapter"] is module["adapter"]
    assert view["norm"] is module["norm"]
    hidden = torch.randn(3, 8)
    with torch.inference_mode():
        torch.testing.assert_close(view["inner"](hidden), module["inner"](hidden))
        module["inner"][0].weight.fill_(1.0)
    assert view["inner"][0].weight is module["inner"][0].weight
    assert view["inner"][0].bias is module["inner"][0].bias
    module["inner"][0].weight = nn.Parameter(torch.zeros(8, 8))
    assert view["inner"][0].weight is module["inner"][0].weight
    assert taken == [3]


def test_hooks_of_the_module_are_hooks_of_the_view(taken: list[int]) -> None:
    module, calls = block(), []
    view = product_view(module)
    module["inner"][0].register_forward_hook(lambda *_: calls.append(1))
    view["inner"](torch.randn(3, 8))
    assert calls == [1]


def test_nothing_is_copied_where_it_does_not_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    module = block()
    monkeypatch.setattr(products, "onednn_pays", lambda threads: True)
    assert product_view(module) is module  # too small
    monkeypatch.setattr(products, "_WORK", 1)
    assert product_view(module.double()) is module
    monkeypatch.setattr(products, "onednn_pays", lambda threads: False)
    assert product_view(block().float()) is not module


def switched(setting: str) -> AbstractContextManager[Any]:
    """Return what puts torch into a mode that changes how products or new tensors look."""
    if setting == "autocast":
        return torch.autocast("cpu", dtype=torch.bfloat16)
    return torch.device("meta")


@needs_onednn
@pytest.mark.parametrize("setting", ["autocast", "meta", "float64"])
def test_the_measurement_is_the_same_under_any_setting_of_torch(
    monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.setattr(products, "_LEAD", 0.0)
    if setting != "float64":
        with switched(setting):
            assert onednn_pays.__wrapped__(1)
        return
    torch.set_default_dtype(torch.float64)
    try:
        assert onednn_pays.__wrapped__(1)
    finally:
        torch.set_default_dtype(torch.float32)


@needs_onednn
def test_modules_that_are_compiled_stay_whole(taken: list[int]) -> None:
    """A compiled module hands what is assigned to it on to the one inside, which must not happen to it here."""
    module, hidden = block(), torch.randn(3, 8)
    compiled = torch.compile(module["inner"], backend="eager")
    view = product_view(nn.Sequential(compiled, nn.Linear(8, 8)))
    assert view[0] is compiled
    assert list(module["inner"]._modules) == ["0", "1"]
    assert module["inner"].training
    taken.clear()
    with torch.inference_mode():
        view(hidden)
    assert taken == [3]
    module["inner"].compile(backend="eager")
    assert product_view(module)["inner"]._compiled_call_impl is None


@needs_onednn
def test_a_module_that_refuses_to_be_pickled_is_viewed(taken: list[int]) -> None:
    class Scaled(nn.Sequential):
        """Linear layers and a parameter of its own."""

    module = Scaled(nn.Linear(8, 8))
    module.register_parameter("scale", nn.Parameter(torch.ones(8)))
    nn.utils.parametrize.register_parametrization(module, "scale", nn.Softplus())
    view = product_view(module)
    assert view is not module
    torch.testing.assert_close(view.scale, module.scale)


class Switch(nn.Module):
    """A module with a switch, as adapters have one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.sign = nn.Linear(8, 8), 1

    def forward(self, hidden: Tensor) -> Tensor:
        return self.sign * self.layer(hidden)


@needs_onednn
def test_a_renewed_view_has_the_attributes_of_its_module(taken: list[int]) -> None:
    module = nn.Sequential(nn.Sequential(Switch()), nn.LayerNorm(8)).train()
    view = product_view(module)
    module[0][0].sign = -1
    module[0][0].layer.register_parameter("bias", None)
    renew(view)
    hidden = torch.randn(3, 8)
    with torch.inference_mode():
        torch.testing.assert_close(view(hidden), module(hidden))
    assert taken == [3]
    assert view[0][0].layer is not module[0][0].layer
    assert not view[0].training
    assert module[0].training


@needs_onednn
def test_a_target_follows_adapters_that_are_switched(taken: list[int], tiny_model: ModelFactory) -> None:
    peft = pytest.importorskip("peft")
    model = tiny_model(layers=2)
    config = peft.LoraConfig(lora_alpha=64, init_lora_weights=False, target_modules=["q_proj", "down_proj"])
    adapted = peft.get_peft_model(model, config, adapter_name="a")
    adapted.add_adapter("b", config)
    prompt = torch.tensor([[5, 9, 3, 20]])

    def both() -> list[int]:
        options = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
        wanted = model.generate(prompt, attention_mask=torch.ones_like(prompt), **options)[0, 4:].tolist()
        assert ssd_infer.generate(model, prompt, max_new_tokens=12).sequences == [wanted]
        return wanted

    texts = []
    for switch in (
        lambda: adapted.set_adapter("a"),
        lambda: adapted.set_adapter("b"),
        adapted.base_model.disable_adapter_layers,
    ):
        switch()
        texts.append(tuple(both()))
    assert len(set(texts)) == 3
    assert taken


@needs_onednn
def test_a_target_multiplies_through_the_view(taken: list[int], tiny_model: ModelFactory) -> None:
    model = tiny_model()
    target = Target.of(model)
    taken.clear()
    hidden = torch.randn(2, 3, 32)
    with torch.inference_mode():
        torch.testing.assert_close(target.logits(hidden), model.lm_head(model.model.norm(hidden)))
    assert taken == [6]
    assert all(type(part) is nn.Linear for part in model.modules() if isinstance(part, nn.Linear))


@needs_onednn
def test_a_target_sees_modules_that_were_replaced(taken: list[int], tiny_model: ModelFactory) -> None:
    """As adapters and resized vocabularies replace them between two decodings."""
    model = tiny_model()
    first = Target.of(model)
    assert Target.of(model) is first
    model.model.layers[1].mlp.up_proj = nn.Linear(32, 64, bias=False)
    second = Target.of(model)
    assert second is not first
    assert second.layers[1].mlp.up_proj.weight is model.model.layers[1].mlp.up_proj.weight
    model.lm_head = nn.Linear(32, 97, bias=False)
    assert Target.of(model).head.weight is model.lm_head.weight
    third = Target.of(model)
    mlp = model.model.layers[0].mlp
    mlp.__class__ = type("Sharded", (type(mlp),), {})  # as torch's sharding makes modules its own
    assert type(Target.of(model).layers[0].mlp) is type(mlp)
    assert Target.of(model) is not third

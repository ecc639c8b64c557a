"""Products through oneDNN have the values and gradients of torch's own, and nothing else about a model changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ssd_train import run
from ssd_train.losses import processor, products
from ssd_train.losses.chunked import ExitTerm, chunked_exit_loss
from ssd_train.losses.products import FastLinear, use_fast_products
from tests.conftest import build_model
from tests.train.support import tiny_root

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"),
    reason="this torch has no oneDNN",
)


@pytest.fixture(autouse=True)
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take oneDNN on every processor, and for the smallest product."""
    monkeypatch.setattr(products, "prefers_onednn", lambda: True)
    monkeypatch.setattr(products, "large", lambda work: True)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, ...]]]:
    """Return the shapes of what `multiply` was given."""
    seen: list[tuple[int, ...]] = []
    multiply = products.multiply

    def noted(hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        seen.append((*hidden.shape, weight.shape[0]))
        return multiply(hidden, weight, bias)

    monkeypatch.setattr(products, "multiply", noted)
    return seen


def _pair(inputs: int, outputs: int, *, bias: bool) -> tuple[nn.Linear, nn.Linear]:
    torch.manual_seed(0)
    usual, fast = (nn.Linear(inputs, outputs, bias=bias) for _ in range(2))
    fast.load_state_dict(usual.state_dict())
    assert use_fast_products(fast) == 1
    assert type(fast) is FastLinear
    return usual, fast


@pytest.mark.parametrize(("inputs", "outputs"), [(24, 40), (40, 24), (16, 16), (1, 7)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(12,), (3, 5), (2, 3, 4)])
def test_values_and_gradients_are_those_of_torch(
    calls: list[tuple[int, ...]], inputs: int, outputs: int, bias: bool, shape: tuple[int, ...]
) -> None:
    usual, fast = _pair(inputs, outputs, bias=bias)
    one = torch.randn(*shape, inputs, requires_grad=True)
    other = one.detach().clone().requires_grad_()
    slope = torch.randn(*shape, outputs)
    usual(one).backward(slope)
    fast(other).backward(slope)
    torch.testing.assert_close(fast(other), usual(one))
    torch.testing.assert_close(other.grad, one.grad)
    for mine, theirs in zip(fast.parameters(), usual.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)
    assert len(calls) == 4


@pytest.mark.filterwarnings("ignore:Input #")
def test_gradients_are_the_slopes_of_the_values() -> None:
    """Against differences of the values themselves; float32 leaves three digits of them."""
    torch.manual_seed(0)
    layer = nn.Linear(5, 4)
    use_fast_products(layer)
    inputs = (torch.randn(6, 5, requires_grad=True), layer.weight, layer.bias)

    def call(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return products._Product.apply(hidden, weight, bias)

    assert torch.autograd.gradcheck(call, inputs, eps=1e-2, atol=1e-3, rtol=1e-3)


def test_gradients_nobody_wants_are_not_computed(calls: list[tuple[int, ...]]) -> None:
    _, fast = _pair(8, 6, bias=True)
    fast.weight.requires_grad_(requires_grad=False)
    fast(torch.randn(3, 8)).sum().backward()
    assert fast.weight.grad is None
    assert torch.equal(fast.bias.grad, torch.full((6,), 3.0))
    assert len(calls) == 1


def test_a_recomputed_layer_gives_the_same_gradient() -> None:
    _, fast = _pair(8, 6, bias=False)
    hidden = torch.randn(4, 8, requires_grad=True)
    fast(hidden).pow(2).sum().backward()
    straight, fast.weight.grad = fast.weight.grad, None
    checkpoint(fast, hidden, use_reentrant=False).pow(2).sum().backward()
    assert torch.equal(straight, fast.weight.grad)


@pytest.mark.parametrize("kind", ["autocast", "float64", "bfloat16", "small", "other processor"])
def test_everything_else_stays_with_torch(
    monkeypatch: pytest.MonkeyPatch, calls: list[tuple[int, ...]], kind: str
) -> None:
    usual, fast = _pair(8, 6, bias=True)
    dtype = {"float64": torch.float64, "bfloat16": torch.bfloat16}.get(kind, torch.float32)
    usual.to(dtype)
    fast.to(dtype)
    if kind == "small":
        monkeypatch.setattr(products, "large", lambda work: False)
    if kind == "other processor":
        monkeypatch.setattr(products, "prefers_onednn", lambda: False)
    hidden = torch.randn(3, 8, dtype=dtype)
    with torch.autocast("cpu", enabled=kind == "autocast"):
        mine, theirs = fast(hidden), usual(hidden)
    assert mine.dtype is theirs.dtype
    assert torch.equal(mine, theirs)
    mine.sum().backward()
    assert not calls


def test_a_model_keeps_everything_but_its_speed() -> None:
    """Weights, names, hooks and outputs are the same, and so is the gradient of every parameter."""
    model, reference = build_model(tie_word_embeddings=False), build_model(tie_word_embeddings=False)
    heard: list[nn.Module] = []
    model.lm_head.register_forward_hook(lambda module, *_: heard.append(module))
    objects = dict(model.named_modules())
    linear = [name for name, module in objects.items() if type(module) is nn.Linear]
    assert use_fast_products(model) == len(linear) > 0
    assert use_fast_products(model) == 0
    assert all(module is objects[name] for name, module in model.named_modules())
    assert all(isinstance(objects[name], nn.Linear) for name in linear)
    assert list(model.state_dict()) == list(reference.state_dict())
    ids = torch.arange(2, 26).view(2, 12)
    losses = [one(input_ids=ids, labels=ids).loss for one in (model, reference)]
    for loss in losses:
        loss.backward()
    torch.testing.assert_close(*losses)
    for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-6)
    assert heard == [model.lm_head]


def test_layers_that_are_something_else_are_left_alone() -> None:
    class Special(nn.Linear):
        pass

    replaced = nn.Linear(2, 2)
    replaced.forward = lambda hidden: hidden
    model = nn.Sequential(Special(2, 2), replaced, nn.Linear(2, 2))
    assert use_fast_products(model) == 1
    assert [type(layer) for layer in model] == [Special, nn.Linear, FastLinear]


def test_no_processor_but_amds_changes_library(monkeypatch: pytest.MonkeyPatch) -> None:
    for able, expected in (
        ({"avx512_f": True, "sse4a": True}, True),
        ({"avx512_f": True}, False),
        ({"sse4a": True}, False),
        ({}, False),
    ):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda able=able: able, raising=False)
        assert processor.prefers_onednn.__wrapped__() is expected
    monkeypatch.undo()
    monkeypatch.setattr(products, "prefers_onednn", lambda: False)
    layer = nn.Linear(2, 2)
    assert use_fast_products(layer) == 0
    assert type(layer) is nn.Linear


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("width", [8, 60])
def test_the_chunked_loss_has_the_same_values_and_gradients(
    monkeypatch: pytest.MonkeyPatch, calls: list[tuple[int, ...]], bias: bool, width: int
) -> None:
    torch.manual_seed(0)
    head = nn.Linear(width, 40, bias=bias)
    states = [torch.randn(21, width) for _ in range(3)]
    labels = torch.randint(40, (21,))
    terms = [ExitTerm(0.3, (("forward", 0.5, True), ("reverse", 0.5, True)))] * 2

    def loss() -> list[Tensor]:
        inputs = [head.weight, *(part.clone().requires_grad_() for part in states)]
        sums = chunked_exit_loss(inputs[1], inputs[2:], labels, head.weight, head.bias, terms, chunk_tokens=8)
        return [sums.total.detach(), *torch.autograd.grad(sums.total, inputs)]

    fast = loss()
    assert calls
    monkeypatch.setattr(products, "prefers_onednn", lambda: False)
    for mine, theirs in zip(fast, loss(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def _losses(directory: Path) -> list[float]:
    """Train a tiny run in `directory` and return its logged losses."""
    directory.mkdir()
    cfg = tiny_root(directory, max_steps=4, logging_steps=1)
    run.train(cfg)
    lines = (cfg.run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["loss"] for line in lines]


def test_a_run_takes_them_and_has_the_same_loss_curve(
    monkeypatch: pytest.MonkeyPatch, calls: list[tuple[int, ...]], tmp_path: Path
) -> None:
    used: list[int] = []
    monkeypatch.setattr(run, "use_fast_products", lambda model: used.append(use_fast_products(model)))
    fast = _losses(tmp_path / "fast")
    assert used == [4 * 7 + 1]
    assert len(calls) > 4 * 4 * 7 * 3
    monkeypatch.setattr(products, "prefers_onednn", lambda: False)
    assert _losses(tmp_path / "usual") == pytest.approx(fast, rel=1e-4)

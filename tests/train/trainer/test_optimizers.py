"""Muon with AdamW behaves as one optimizer: parameters split once, schedule and state of both survive a resume."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from ssd_train.cli.load import load_config
from ssd_train.trainer import muon
from ssd_train.trainer.muon import StackedMuon, orthogonalise
from ssd_train.trainer.optimizers import MuonAdamW, build_muon, custom_optimizer
from tests.conftest import build_model
from tests.offload.support import build_moe

OVERRIDES = ["+recipe=layerskip", "model=tiny", "data.block_size=64"]


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    ids = torch.randint(2, 97, (4, 12), generator=torch.Generator().manual_seed(seed))
    optimizer.zero_grad()
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()


def test_every_parameter_has_exactly_one_optimizer() -> None:
    model = build_model(tie_word_embeddings=False)
    optimizer = build_muon(model, load_config(OVERRIDES))
    matrices, adamw = ({id(p) for g in part.param_groups for p in g["params"]} for part in optimizer.parts)
    assert not matrices & adamw
    assert matrices | adamw == {id(p) for p in model.parameters()}
    inside = {id(p) for p in model.model.layers.parameters() if p.dim() == 2}
    assert matrices == inside


def test_experts_go_to_muon_and_routers_do_not() -> None:
    model = build_moe(dtype=torch.float32)
    optimizer = build_muon(model, load_config(OVERRIDES))
    matrices, stacked, adamw = (
        {id(p) for g in part.param_groups for p in g["params"]} for part in optimizer.parts
    )
    assert matrices | stacked | adamw == {id(p) for p in model.parameters()}
    layer = model.model.layers[0]
    assert {id(layer.mlp.experts.gate_up_proj), id(layer.mlp.experts.down_proj)} <= stacked
    assert id(layer.mlp.gate.weight) in adamw
    assert id(layer.self_attn.q_proj.weight) in matrices


SETTINGS = {"lr": 0.02, "momentum": 0.95, "weight_decay": 0.1}


def _moved(
    build: Callable[..., torch.optim.Optimizer], starts: list[Tensor], grads: list[list[Tensor]]
) -> list[Tensor]:
    """Return where `starts` end after one step for each of `grads`."""
    held = [nn.Parameter(start.clone()) for start in starts]
    optimizer = build(held, **SETTINGS)
    for step in grads:
        for parameter, grad in zip(held, step, strict=True):
            parameter.grad = grad.clone()
        optimizer.step()
    return [parameter.detach() for parameter in held]


def _drawn(shapes: list[tuple[int, ...]]) -> tuple[list[Tensor], list[list[Tensor]]]:
    """Return weights of `shapes` and the gradients of four steps, whose matrices are far from orthogonal."""
    draw = torch.Generator().manual_seed(0)

    def one(shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=draw) * torch.linspace(0.1, 2, shape[-1])

    return [one(shape) for shape in shapes], [[one(shape) for shape in shapes] for _ in range(4)]


SHAPES = [(24, 16), (16, 24), (24, 16), (16, 16), (8, 40), (16, 24), (1, 5)]
"""Several of one shape, of that shape turned round, and some that stand alone."""


@pytest.mark.parametrize("shapes", [SHAPES, SHAPES[:1], SHAPES[3:5]])
@pytest.mark.parametrize("together", [1 << 24, 800, 1])
def test_matrices_move_together_as_each_would_alone(
    monkeypatch: pytest.MonkeyPatch, shapes: list[tuple[int, ...]], together: int
) -> None:
    """In float32 nothing but the order of additions differs, however many are taken at a time."""
    monkeypatch.setattr(muon, "precision", lambda device: torch.float32)
    starts, grads = _drawn(shapes)
    alone = [
        _moved(StackedMuon, [start], [[step[index]] for step in grads])[0]
        for index, start in enumerate(starts)
    ]
    monkeypatch.setattr(muon, "_TOGETHER", together)
    for one, moved in zip(alone, _moved(StackedMuon, starts, grads), strict=True):
        torch.testing.assert_close(moved, one, rtol=1e-5, atol=1e-6)


def test_the_step_is_that_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's Muon computes in bfloat16; in the same precision ours differs by its rounding."""
    starts, grads = _drawn(SHAPES)
    monkeypatch.setattr(muon, "precision", lambda device: torch.bfloat16)
    for ours, theirs in zip(
        _moved(StackedMuon, starts, grads), _moved(torch.optim.Muon, starts, grads), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-3)


def test_float32_gives_the_step_of_bfloat16_within_its_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    stack = _drawn([(6, 24, 16)])[0][0]
    found = []
    for dtype in (torch.bfloat16, torch.float32):
        monkeypatch.setattr(muon, "precision", lambda device, dtype=dtype: dtype)
        found.append(orthogonalise(stack))
        assert found[-1].dtype is dtype
    assert (found[0].float() - found[1]).norm() < 0.03 * found[1].norm()


@pytest.mark.parametrize(("able", "dtype"), [(False, torch.float32), (True, torch.bfloat16)])
def test_a_processor_without_bfloat16_computes_in_float32(
    monkeypatch: pytest.MonkeyPatch, able: bool, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(muon, "multiplies_bfloat16", lambda: able)
    assert orthogonalise(torch.eye(3)[None]).dtype is dtype
    assert muon.precision(torch.device("cuda")) is torch.bfloat16


def test_a_stack_moves_as_its_matrices_would_alone() -> None:
    starts, grads = _drawn([(3, 24, 16)])
    stack = _moved(StackedMuon, starts, grads)[0]
    parts = _moved(StackedMuon, list(starts[0]), [list(step[0]) for step in grads])
    torch.testing.assert_close(stack, torch.stack(parts), rtol=1e-5, atol=1e-6)
    values = torch.linalg.svdvals(orthogonalise(starts[0]).float())
    assert values.min() > 0.4
    assert values.max() < 1.4


def test_a_matrix_without_a_gradient_stays() -> None:
    one, other = (nn.Parameter(torch.ones(4, 4)) for _ in range(2))
    one.grad = torch.eye(4)
    StackedMuon([one, other], **SETTINGS).step()
    assert torch.equal(other, torch.ones(4, 4))
    assert not torch.equal(one, other)


def test_what_torch_saved_before_is_gone_on_from() -> None:
    """Checkpoints of earlier versions hold the state of `torch.optim.Muon` for the matrices."""
    starts, grads = _drawn(SHAPES)
    held = [nn.Parameter(start.clone()) for start in starts]
    old = torch.optim.Muon(held, **{**SETTINGS, "lr": 0.013})

    def step(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter], number: int) -> None:
        for parameter, grad in zip(parameters, grads[number], strict=True):
            parameter.grad = grad.clone()
        optimizer.step()

    step(old, held, 0)
    step(old, held, 1)
    resumed = deepcopy(held)
    new = StackedMuon(resumed, **SETTINGS)
    new.load_state_dict(deepcopy(old.state_dict()))
    step(old, held, 2)
    step(new, resumed, 2)
    assert new.param_groups[0]["lr"] == 0.013
    for mine, theirs in zip(resumed, held, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-3)


def test_old_checkpoints_of_experts_fit() -> None:
    """The matrices and the stacks are two parts of the saved state, as they were with two kinds of optimizer."""
    model = build_moe(dtype=torch.float32)
    optimizer = build_muon(model, load_config(OVERRIDES))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    saved = optimizer.state_dict()
    assert [len(part["state"]) for part in saved["parts"]] == [
        sum(len(group["params"]) for group in part.param_groups) for part in optimizer.parts
    ]
    assert len(saved["parts"]) == 3
    assert set(saved["parts"][0]["state"][0]) == {"momentum_buffer"}


def test_a_scheduler_scales_both_parts_from_their_own_rate() -> None:
    cfg = load_config(OVERRIDES)
    optimizer = build_muon(build_model(), cfg)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    optimizer.step()
    schedule.step()
    matrices, adamw = (part.param_groups[0]["lr"] for part in optimizer.parts)
    assert (matrices, adamw) == (cfg.optim.muon_learning_rate / 2, cfg.train.learning_rate / 2)


def test_restored_state_continues_bit_for_bit() -> None:
    cfg = load_config(OVERRIDES)
    straight, stopped = build_model(), build_model()
    whole, first = build_muon(straight, cfg), build_muon(stopped, cfg)
    for seed in range(4):
        _step(straight, whole, seed)
    for seed in range(2):
        _step(stopped, first, seed)
    resumed = build_model(seed=5)
    resumed.load_state_dict(stopped.state_dict())
    second = build_muon(resumed, cfg)
    second.load_state_dict(first.state_dict())
    for seed in range(2, 4):
        _step(resumed, second, seed)
    assert all(torch.equal(a, b) for a, b in zip(straight.parameters(), resumed.parameters(), strict=True))
    parameter = next(resumed.model.layers.parameters())
    assert second.state[parameter] is second.parts[0].state[parameter]


def test_other_optimizers_are_left_to_the_trainer() -> None:
    assert custom_optimizer(load_config([*OVERRIDES, "optim=adamw"])) is None
    found = custom_optimizer(load_config(OVERRIDES))
    assert found is not None
    factory, arguments = found
    assert isinstance(factory()(build_model(), **arguments), MuonAdamW)

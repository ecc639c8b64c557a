"""Muon with AdamW behaves as one optimizer: parameters split once, schedule and state of both survive a resume."""

from __future__ import annotations

import torch
from torch import nn

from ssd_train.config.load import load_config
from ssd_train.muon import StackedMuon, orthogonalise
from ssd_train.optimizers import MuonAdamW, build_muon, custom_optimizer
from tests.conftest import build_model
from tests.experts.support import build_moe

OVERRIDES = ["+recipe=layerskip", "model=tiny", "data.block_size=64"]


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    ids = torch.randint(2, 97, (4, 12), generator=torch.Generator().manual_seed(seed))
    optimizer.zero_grad()
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()


def test_every_parameter_has_exactly_one_optimizer() -> None:
    model = build_model(tie_word_embeddings=False)
    optimizer = build_muon(model, load_config(OVERRIDES))
    muon, adamw = ({id(p) for g in part.param_groups for p in g["params"]} for part in optimizer.parts)
    assert not muon & adamw
    assert muon | adamw == {id(p) for p in model.parameters()}
    inside = {id(p) for p in model.model.layers.parameters() if p.dim() == 2}
    assert muon == inside


def test_experts_go_to_muon_and_routers_do_not() -> None:
    model = build_moe(dtype=torch.float32)
    optimizer = build_muon(model, load_config(OVERRIDES))
    muon, stacked, adamw = (
        {id(p) for g in part.param_groups for p in g["params"]} for part in optimizer.parts
    )
    assert muon | stacked | adamw == {id(p) for p in model.parameters()}
    layer = model.model.layers[0]
    assert {id(layer.mlp.experts.gate_up_proj), id(layer.mlp.experts.down_proj)} <= stacked
    assert id(layer.mlp.gate.weight) in adamw
    assert id(layer.self_attn.q_proj.weight) in muon


def test_a_stack_moves_as_its_matrices_would_alone() -> None:
    torch.manual_seed(0)
    start, grads = torch.randn(3, 24, 16), torch.randn(4, 3, 24, 16)
    stack = nn.Parameter(start.clone())
    alone = [nn.Parameter(part.clone()) for part in start]
    settings = {"lr": 0.02, "momentum": 0.95, "weight_decay": 0.1}
    ours = StackedMuon([stack], **settings)
    theirs = torch.optim.Muon(alone, **settings)
    for grad in grads:
        stack.grad = grad.clone()
        for parameter, part in zip(alone, grad, strict=True):
            parameter.grad = part.clone()
        ours.step()
        theirs.step()
    assert torch.allclose(stack, torch.stack(list(alone)), atol=2e-3)
    values = torch.linalg.svdvals(orthogonalise(start).float())
    assert values.min() > 0.4
    assert values.max() < 1.4


def test_a_scheduler_scales_both_parts_from_their_own_rate() -> None:
    cfg = load_config(OVERRIDES)
    optimizer = build_muon(build_model(), cfg)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    optimizer.step()
    schedule.step()
    muon, adamw = (part.param_groups[0]["lr"] for part in optimizer.parts)
    assert (muon, adamw) == (cfg.optim.muon_learning_rate / 2, cfg.train.learning_rate / 2)


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

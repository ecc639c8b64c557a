"""What was measured on a model is measured again when the model or what it runs on is another."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

from ssd_infer.tuning.memo import Memo, weights_version
from tests.conftest import build_model


def counted(memo: Memo[int], model: nn.Module, made: list[int], key: str = "cost") -> int:
    def make() -> int:
        made.append(len(made))
        return len(made)

    return memo.cached(model, key, make)


def test_a_value_is_made_once_for_each_key() -> None:
    model, memo, made = build_model(layers=2), Memo[int](), list[int]()
    assert counted(memo, model, made) == counted(memo, model, made) == 1
    assert counted(memo, model, made, "other") == 2


def test_an_optimizer_step_makes_it_again() -> None:
    model, memo, made = build_model(layers=2), Memo[int](), list[int]()
    counted(memo, model, made)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(input_ids=torch.tensor([[1, 2, 3]])).logits.sum().backward()
    optimizer.step()
    assert counted(memo, model, made) == 2


def test_weights_loaded_in_place_and_replaced_parameters_make_it_again() -> None:
    model, memo, made = build_model(layers=2), Memo[int](), list[int]()
    counted(memo, model, made)
    model.load_state_dict(build_model(layers=2, seed=1).state_dict())
    assert counted(memo, model, made) == 2
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    assert counted(memo, model, made) == 3


def test_another_precision_and_thread_count_are_measured_apart() -> None:
    model, memo, made = build_model(layers=2), Memo[int](), list[int]()
    counted(memo, model, made)
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        assert counted(memo, model, made) == 2
    finally:
        torch.set_num_threads(before)
    assert counted(memo, model, made) == 1
    assert counted(memo, model.to(torch.float64), made) == 3


def test_switching_an_adapter_off_makes_it_again() -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(target_modules=["q_proj"], r=2)
    adapted = peft.get_peft_model(build_model(layers=2), config)
    inner = adapted.base_model.model
    before = weights_version(inner)
    with adapted.disable_adapter():
        assert weights_version(inner) != before
    assert weights_version(inner) == before


def test_a_memo_keeps_no_model_alive() -> None:
    model, memo = build_model(layers=2), Memo[int]()
    counted(memo, model, [])
    del model
    gc.collect()
    assert len(memo._kept) == 0

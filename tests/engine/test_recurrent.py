"""Recurrent states go back to what was accepted, whatever a draft has shown them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

import ssd_infer
from ssd_infer.engine import recurrent
from ssd_infer.engine.cache import RowCache
from ssd_infer.engine.recurrent import RecurrentCache
from ssd_infer.engine.recurrent_states import LayerStates, MixerStates
from ssd_infer.engine.target import Target
from ssd_infer.engine.window import Window
from ssd_infer.errors import ConfigError
from tests.engine.causal_families import VOCAB, needs_states
from tests.engine.family_table import CASES, Case, alone, built

pytestmark = needs_states
HYBRID = ("qwen3_next", "lfm2", "falcon_h1", "nemotron_h", "mamba2", "bamba")
BY_TYPE = {case.model_type: case for case in CASES}


class Sum:
    """A mixer whose state is the sum of its inputs, and whose output is the state after each of them."""

    def __init__(self) -> None:
        self.tokens = 0

    def __call__(self, hidden: Tensor, states: MixerStates) -> Tensor:
        self.tokens += hidden.shape[0] * hidden.shape[1]
        before = states.get_recurrent_state(0)
        start = hidden.new_zeros(hidden.shape[0], hidden.shape[2]) if before is None else before
        sums = start.unsqueeze(1) + hidden.cumsum(dim=1)
        states.update_recurrent_state(sums[:, -1], 0)
        return sums


def layer(rows: int) -> LayerStates:
    states = LayerStates(rows)
    states.begin([0] * rows)
    return states


def numbers(*rows: Sequence[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64).unsqueeze(-1)


def test_passes_that_follow_each_other_run_nothing_again() -> None:
    states, mixer = layer(1), Sum()
    states.run([0], numbers([1, 2]), mixer)
    assert states.run([2], numbers([3]), mixer).flatten().tolist() == [6]
    assert mixer.tokens == 3


def test_a_rejected_token_is_forgotten_and_accepted_ones_run_once_more() -> None:
    states, mixer = layer(1), Sum()
    states.run([0], numbers([1, 2]), mixer)
    states.marked = [2]
    states.run([2], numbers([10, 20, 30]), mixer)
    states.marked = [3]  # 10 was accepted, 20 and 30 were not
    assert states.run([3], numbers([5]), mixer).flatten().tolist() == [18]
    assert mixer.tokens == 2 + 3 + 1 + 1


def test_a_draft_and_then_the_pass_that_verifies_it_begin_at_the_same_state() -> None:
    states, mixer = layer(1), Sum()
    states.run([0], numbers([1]), mixer)
    states.marked = [1]
    for at, token in ((1, 100.0), (2, 200.0)):
        states.run([at], numbers([token]), mixer)
    assert states.run([1], numbers([3, 4]), mixer).flatten().tolist() == [4, 8]


def test_rows_go_back_to_lengths_of_their_own() -> None:
    states, mixer = layer(3), Sum()
    states.run([0, 0, 0], numbers([1, 2, 3], [4, 0, 0], [5, 6, 0]), mixer)  # padded on the right
    states.marked = [3, 1, 2]
    found = states.run([3, 1, 2], numbers([10], [20], [30]), mixer)
    assert found.flatten().tolist() == [16, 24, 41]
    states.keep_rows(torch.tensor([0, 2]))
    states.marked = [3, 3]
    assert states.run([3, 3], numbers([1], [1]), mixer).flatten().tolist() == [7, 42]


def test_a_pass_before_what_is_committed_or_past_what_was_seen_is_an_error() -> None:
    states, mixer = layer(1), Sum()
    states.run([0], numbers([1, 2]), mixer)
    states.marked = [2]
    states.run([2], numbers([3]), mixer)
    for place in (1, 4):
        with pytest.raises(RuntimeError, match="recurrent layer"):
            states.run([place], numbers([3]), mixer)


@pytest.mark.parametrize("model_type", HYBRID)
@torch.inference_mode()
def test_states_after_rounds_of_rejections_are_those_of_the_committed_text(model_type: str) -> None:
    """No losslessness test of greedy tokens finds a state that is a little off; this one compares the states."""
    target = Target.of(built(BY_TYPE[model_type]))
    draw = torch.Generator().manual_seed(3)
    texts = torch.randint(3, VOCAB, (2, 24), generator=draw)
    lengths, cache, geometry = [9, 5], target.new_cache(2, 40), target.geometry(40)
    assert isinstance(cache, RecurrentCache)
    _pass(target, cache, Window(geometry, [0, 0], 9), texts[:, :9])
    for accepted in ([4, 0], [2, 3], [0, 4], [1, 1]):
        cache.commit(lengths)
        width = 5
        window = Window(geometry, lengths, width)
        block = torch.stack([row[at : at + width] for row, at in zip(texts, lengths, strict=True)])
        for row, right in enumerate(accepted):  # what was not accepted is some other token
            block[row, right + 1 :] = (block[row, right + 1 :] + 7) % VOCAB
        _pass(target, cache, window, block)
        lengths = [length + right + 1 for length, right in zip(lengths, accepted, strict=True)]
    cache.commit(lengths)
    last = torch.stack([row[at : at + 1] for row, at in zip(texts, lengths, strict=True)])
    found = _pass(target, cache, Window(geometry, lengths, 1), last)
    for row, length in enumerate(lengths):
        fresh, own = target.new_cache(1, 40), target.geometry(40)
        assert isinstance(fresh, RecurrentCache)
        for first, last in pairwise([0, *range((9, 5)[row], length + 2)]):
            ids = texts[row : row + 1, first:last]
            expected = _pass(target, fresh, Window(own, [first], last - first), ids)
        scale = float(expected.abs().max())
        assert float((found[row, -1] - expected[0, -1]).abs().max()) < 1e-4 * scale
        for place, (state, other) in enumerate(zip(cache.tensors(), fresh.tensors(), strict=True)):
            assert float((state[row] - other[0]).abs().max()) < 1e-3 * float(other.abs().max()), place


def _pass(target: Target, cache: RowCache, window: Window, ids: Tensor) -> Tensor:
    return target.logits(target.run(target.embed_at(ids, window, cache), window, cache))


@pytest.mark.parametrize("model_type", ["qwen3_next", "mamba2"])
def test_one_pass_or_many_write_the_same_text(model_type: str) -> None:
    case: Case = BY_TYPE[model_type]
    target = Target.of(built(case))
    ids = torch.arange(3, 23).unsqueeze(0)
    results = []
    with torch.inference_mode():
        for cuts in ([0, 20], [0, 1, 2, 7, 20], [0, 6, 12, 19, 20]):
            cache, geometry = target.new_cache(1, 20), target.geometry(20)
            parts = [
                _pass(target, cache, Window(geometry, [a], b - a), ids[:, a:b]) for a, b in pairwise(cuts)
            ]
            results.append(torch.cat(parts, dim=1))
    for other in results[1:]:
        assert torch.allclose(results[0], other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("draft", "params"),
    [("early_exit", None), ("skip_set", None), ("early_exit", {"exit_layer": 2, "gamma": 3})],
)
def test_what_is_left_to_auto_decodes_as_plain_decoding_does(
    draft: str, params: dict[str, Any] | None
) -> None:
    model = built(BY_TYPE["qwen3_next"])
    rows = [[5, 6, 7, 5, 6, 7, 5], [9, 8, 9]]
    plain = ssd_infer.generate(model, rows, max_new_tokens=12, eos_token_id=[])
    found = ssd_infer.generate(
        model, rows, draft=draft, draft_params=params, max_new_tokens=12, eos_token_id=[]
    )
    assert found.sequences == plain.sequences


def test_a_search_that_needs_states_of_old_is_declined_in_words() -> None:
    model = built(BY_TYPE["qwen3_next"])
    with pytest.raises(ssd_infer.errors.ConfigError, match="recurrent states are not kept"):
        ssd_infer.generate(model, [[5, 6, 7]], draft="swift", max_new_tokens=4)
    found = ssd_infer.generate(model, [[5, 6, 7]], draft="skip_set", max_new_tokens=4)
    assert "recurrent states are not kept" in found.note


def test_a_model_whose_states_differ_by_the_cut_of_the_passes_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nemotron-H bounds time steps of several tokens only; without going one by one its states would go astray."""
    model = built(BY_TYPE["nemotron_h"])
    assert Target.of(copy.deepcopy(model)).recurrent
    monkeypatch.setattr(recurrent, "_bounded_steps", lambda mixer: False)
    with pytest.raises(ssd_infer.errors.UnsupportedModelError, match="one after another"):
        Target.of(copy.deepcopy(model))


@pytest.mark.parametrize("model_type", ["mamba2", "lfm2", "falcon_h1"])
def test_generate_of_transformers_hands_over_to_it(model_type: str) -> None:
    """Its empty cache, which may have no layer with keys to count, is none of the caller's; a filled one is."""
    model = built(next(case for case in CASES if case.model_type == model_type))
    ids, mask = torch.tensor([[5, 6, 7, 8], [0, 0, 9, 4]]), torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]])
    given: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    ours: dict[str, Any] = {"custom_generate": ssd_infer.hf_generate, "draft": "early_exit"}
    ours["draft_params"] = {"exit_layer": 2, "gamma": 3}
    out = model.generate(ids, attention_mask=mask, **given, **ours)
    assert out[0, 4:].tolist() == alone(model, [5, 6, 7, 8], 8)
    assert out[1, 4:].tolist() == alone(model, [9, 4], 8)
    filled = model.generate(ids[:1], return_dict_in_generate=True, **given).past_key_values
    if filled is None:  # earlier releases of transformers keep that of some models under another name
        return
    with pytest.raises(ConfigError, match="past_key_values: would not be read or extended"):
        model.generate(ids[:1], past_key_values=filled, **given, **ours)

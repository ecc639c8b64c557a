"""Where families end: positions that do not exist, batches they cannot serve, attention backends, shared kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import ssd_infer
from ssd_infer.engine.kernels import plain
from ssd_infer.engine.target import Target
from ssd_infer.errors import UnsupportedModelError
from tests.engine.causal_families import NEWEST, POSITIONS, VOCAB, tiny
from tests.engine.test_families import greedy

DRAFTS: list[tuple[str | None, dict[str, Any]]] = [
    (None, {}),
    ("early_exit", {"exit_layer": 2, "gamma": 8}),
    ("skip_set", {"skip_attention": [2], "skip_mlp": [3], "gamma": 4, "confidence": 0.0}),
]


def prompts(*lengths: int) -> list[torch.Tensor]:
    """Return random prompts of these lengths."""
    draw = torch.Generator().manual_seed(9)
    return [torch.randint(3, VOCAB, (length,), generator=draw) for length in lengths]


def check(model: Any, rows: list[torch.Tensor], new: int) -> None:
    """Compare every draft that applies with transformers' generate, row by row."""
    expected = greedy(model, rows, new)
    for draft, params in DRAFTS:
        out = ssd_infer.generate(
            model, rows, draft=draft, draft_params=params, max_new_tokens=new, eos_token_id=[]
        )
        assert out.sequences == expected, draft


@pytest.mark.parametrize("name", ["gpt2", "opt", "gpt_bigcode"])
def test_all_positions_of_a_table_can_be_used_and_no_more(name: str) -> None:
    model = tiny(name)
    check(model, prompts(POSITIONS - 11, 20), 12)
    with pytest.raises(
        UnsupportedModelError, match=f"it has {POSITIONS} positions, and this text may need 65"
    ):
        ssd_infer.generate(model, prompts(POSITIONS - 11), max_new_tokens=13)


def test_llama4_scales_queries_of_a_single_row_only() -> None:
    model = tiny("llama4_text", floor_scale=8, attn_scale=0.5, no_rope_layers=[1, 0, 1, 0])
    check(model, prompts(13), 12)
    check(model, prompts(2, 3), 5)
    with pytest.raises(UnsupportedModelError, match="must be decoded one by one"):
        ssd_infer.generate(model, prompts(13, 6), max_new_tokens=12)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("falcon", {}),
        ("falcon", {"alibi": True}),
        ("gpt2", {}),
        ("gpt_neox", {}),
        ("gemma2", {"attn_logit_softcapping": 2.0}),
        ("gpt_oss", {}),
        ("llama4_text", {"attention_chunk_size": 8}),
    ],
)
def test_the_eager_backend_is_exact_as_well(name: str, changes: dict[str, Any]) -> None:
    model: Any = tiny(name, **changes)
    model.set_attn_implementation("eager")
    check(model, prompts(14, 9), 10)


@pytest.mark.parametrize(
    ("name", "changes", "shared"),
    [
        ("phi", {}, True),
        ("gpt2", {}, True),
        ("gpt_bigcode", {}, True),
        ("gptj", {}, NEWEST),  # older releases attend by functions of their own
        ("gpt_neox", {}, True),
        ("cohere", {}, True),
        ("granite", {}, True),
        ("opt", {}, True),
        ("falcon", {}, False),
        ("bloom", {}, False),
        ("gemma2", {"layer_types": ["full_attention"] * 4, "attn_logit_softcapping": 2.0}, None),
        ("gpt_oss", {"layer_types": ["full_attention"] * 4}, False),
        ("gemma3_text", {}, False),
        ("llama4_text", {"attention_chunk_size": 8}, False),
        ("gemma4_text", {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0}, False),
    ],
)
def test_grouped_attention_serves_what_it_knows_and_leaves_the_rest(
    name: str, changes: dict[str, Any], shared: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    grouped = plain.unsupported_reason

    def asked(target: Target) -> str | None:
        found = grouped(target)
        seen.append(found is None)
        return found

    monkeypatch.setattr(plain, "_FROM_SLOTS", 1)
    monkeypatch.setattr(plain, "_FROM_CAPACITY", 1)
    monkeypatch.setattr(plain, "unsupported_reason", asked)
    check(tiny(name, **changes), prompts(14, 9), 10)
    assert seen
    assert shared is None or set(seen) == {shared}

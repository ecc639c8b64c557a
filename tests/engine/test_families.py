"""Every causal family of transformers decodes as `generate` does, or is refused in one sentence; nothing else."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn

import ssd_infer
from ssd_infer.engine.target import Target
from ssd_infer.engine.window import Window
from ssd_infer.errors import ConfigError, SSDError, UnsupportedModelError
from tests.engine.causal_families import NAMES, NEWEST, NOT_TINY, VOCAB, tiny
from tests.engine.family_table import CASES, recurrent

NEW = 10


def test_no_layers_at_all_change_nothing_where_rotary_tables_differ_by_layer() -> None:
    """A skip set may hold every sublayer; verification then begins behind layers of which none is left to run."""
    target = Target.of(tiny("gemma3_text"))
    window, cache = Window(target.geometry(4), [0], 4), target.new_cache(1, 4)
    hidden = target.embed_at(torch.tensor([[3, 4, 5, 6]]), window, cache)
    assert torch.equal(target.run(hidden, window, cache, 2, 2), hidden)


DRAFTS: dict[str, dict[str, Any]] = {
    "early_exit": {"exit_layer": 2, "gamma": 4},
    "skip_set": {"skip_attention": [2], "skip_mlp": [3], "gamma": 4, "confidence": 0.0},
    "sparse_attention": {
        "selector": "pillar",
        "ratio": 0.5,
        "min_budget": 4,
        "gamma": 3,
        "cold_start": "dense",
    },
    "reduced_experts": {
        "k_draft": 1,
        "gamma": 3,
        "confidence": 0.0,
        "at_hand": False,
        "prefetch": False,
        "follow": False,
    },
}
_MADE_THERE = {"gemma3", "mistral3", "bamba", "granitemoehybrid", "nemotron_h"}
"""Types that are tiny, or have a layer of attention at all, only as the table of families makes them."""
_STEPPING = set() if NEWEST else {case.model_type for case in CASES if recurrent(case.model_type)}
"""Recurrent types, which older releases refuse: their mixers go on from a state by single tokens only."""
EXACT = {case.model_type for case in CASES} - _MADE_THERE - _STEPPING
"""Families that must not fall back to a refusal."""


def rows() -> list[torch.Tensor]:
    """Return two prompts of different lengths, both longer than the sliding windows."""
    draw = torch.Generator().manual_seed(5)
    return [torch.randint(3, VOCAB, (size,), generator=draw) for size in (14, 9)]


def greedy(model: Any, prompts: list[torch.Tensor], new: int = NEW) -> list[list[int]]:
    """Return transformers' greedy continuations."""
    found = []
    for row in prompts:
        with torch.inference_mode():
            mask = torch.ones_like(row[None])
            out = model.generate(
                row[None],
                attention_mask=mask,
                max_new_tokens=new,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )
        found.append(out[0, len(row) :].tolist())
    return found


def decode(model: nn.Module, draft: str | None, new: int = NEW) -> list[list[int]]:
    """Return what the engine makes of `rows`."""
    params = DRAFTS[draft] if draft else None
    out = ssd_infer.generate(
        model,
        rows(),
        draft=draft,
        draft_params=params,
        max_new_tokens=new,
        eos_token_id=[],
        generation_rules="off",
    )
    return out.sequences


def check_sentence(error: SSDError) -> None:
    """One line of plain words that does not speak of drafts where none was asked for."""
    said = str(error)
    assert "\n" not in said
    assert "cannot draft" not in said
    assert not re.search(r"\b(a|an|no a|no an) (a|an|no) ", said)


def attempt(model: nn.Module, draft: str | None) -> list[list[int]] | SSDError:
    """Return what the engine makes of `rows`, or its refusal; anything else is raised."""
    try:
        return decode(model, draft)
    except (UnsupportedModelError, ConfigError) as error:
        return error


@pytest.mark.parametrize("name", [name for name in NAMES if name not in NOT_TINY])
def test_a_family_decodes_as_generate_or_is_refused(name: str) -> None:
    model = tiny(name)
    plain = attempt(model, None)
    if isinstance(plain, SSDError):
        assert name not in EXACT, plain
        assert isinstance(plain, UnsupportedModelError)
        assert str(plain).startswith(f"{type(model).__name__} cannot be decoded layer by layer here: ")
        check_sentence(plain)
        assert str(attempt(model, "early_exit")) == str(plain)
        return
    expected = greedy(model, rows())
    assert plain == expected
    for draft in DRAFTS:
        found = attempt(model, draft)
        if isinstance(found, SSDError):
            assert isinstance(found, ConfigError)
            assert [problem.key for problem in found.problems] == ["draft"]
            check_sentence(found)
            assert not (routed(model) and "no routed experts" in str(found))
        else:
            assert found == expected, draft


def routed(model: nn.Module) -> bool:
    """Tell whether the model has experts."""
    return any(type(part).__name__.endswith("Experts") for part in model.modules())

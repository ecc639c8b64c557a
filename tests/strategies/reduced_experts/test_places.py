"""Routers are found where each family keeps them, and pick fewer experts there; others are refused in words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from torch import Tensor, nn

import ssd_infer
from ssd_infer.engine.target import Target
from ssd_infer.errors import ConfigError
from ssd_infer.offload.layout import FAMILIES, ROUTED, moe_layers
from ssd_infer.offload.offload import offload_to_memory
from tests.engine.causal_families import NEWEST, tiny
from tests.engine.family_table import CASES, built

ROUTING = [
    case
    for case in CASES
    if case.model_type in (ROUTED if NEWEST else FAMILIES)
    and case.changes.get("enable_moe_block", case.model_type != "gemma4_text")
]
"""Models with routed experts; older releases of transformers keep those of some families in other forms."""
ROWS = [[5, 6, 7, 5, 6, 7, 5, 6], [9, 8, 9]]


def decoded(model: Any, draft: str | None = "reduced_experts", **params: Any) -> Any:
    """Decode the rows."""
    return ssd_infer.generate(
        model,
        ROWS,
        draft=draft,
        draft_params=params,
        max_new_tokens=12,
        eos_token_id=[],
        generation_rules="off",
    )


@contextmanager
def heard(model: nn.Module) -> Iterator[set[int]]:
    """Collect how many experts a token goes to, in the passes made inside the context."""
    counts: set[int] = set()

    def note(_module: nn.Module, args: tuple[Tensor, ...]) -> None:
        counts.add(args[1].shape[-1])

    hooks = [part.experts.register_forward_pre_hook(note) for part in moe_layers(Target.of(model).layers)]
    try:
        yield counts
    finally:
        for hook in hooks:
            hook.remove()


def test_every_known_family_is_tried() -> None:
    assert {case.model_type for case in ROUTING} == set(ROUTED if NEWEST else FAMILIES)


@pytest.mark.parametrize("case", ROUTING, ids=[case.title for case in ROUTING])
def test_drafts_use_fewer_experts_and_with_all_of_them_are_the_model(case: Any) -> None:
    model = built(case)
    top_k = min(part.top_k for part in moe_layers(Target.of(model).layers))
    plain = decoded(model, None)
    with heard(model) as counts:
        fewer = decoded(model, k_draft=1, gamma=3)
    assert counts == {1, top_k}
    assert fewer.sequences == plain.sequences
    for renorm in ("model", "full_mass"):
        out = decoded(model, k_draft=top_k, gamma=3, renorm=renorm)
        assert out.sequences == plain.sequences
        assert out.stats.total.alpha == 1.0


@pytest.mark.skipif(not NEWEST, reason="refused on older releases of transformers")
def test_what_is_left_to_auto_is_measured_with_recurrent_states_too() -> None:
    """Its texts are read again from their middle on, where no state of old is kept."""
    model = built(next(case for case in ROUTING if case.model_type == "qwen3_next"))
    out = decoded(model, k_draft=1, follow=False, confidence=0.0)
    assert out.sequences == decoded(model, None).sequences
    assert "best predicted" in out.note or "measured" in out.note


def test_layers_that_run_every_expert_have_nothing_to_leave_out() -> None:
    model = tiny("llama4_text", attention_chunk_size=8, no_rope_layers=[1, 1, 1, 0])
    with pytest.raises(ConfigError, match="all experts of llama4_text models run for every token"):
        decoded(model, k_draft=1, gamma=3)


@pytest.mark.skipif(not NEWEST, reason="refused on older releases of transformers")
@pytest.mark.parametrize("model_type", ["gpt_oss", "granitemoe", "minimax_m2"])
def test_experts_of_another_form_stay_off_the_disk_in_words(model_type: str) -> None:
    with pytest.raises(
        ConfigError, match=f"offloaded: the routed experts of {model_type} models are not known"
    ):
        offload_to_memory(built(next(case for case in ROUTING if case.model_type == model_type)), 0.5)

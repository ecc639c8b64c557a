"""Tiny mixtures of experts of every family, and their stores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ssd_infer.checkpoint.load import Loaded
from ssd_infer.engine.target import Target
from ssd_infer.offload.offload import load_offloaded, make_store, resident_of
from ssd_infer.offload.resident import ResidentSet
from tests.conftest import build_model

_MLA = {
    "n_routed_experts": 8,
    "first_k_dense_replace": 1,
    "n_shared_experts": 1,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "num_key_value_heads": 4,
}
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"num_experts": 8, "moe_intermediate_size": 16, "norm_topk_prob": True},
    "olmoe": {"num_experts": 8, "intermediate_size": 16},
    "mixtral": {"num_local_experts": 8, "intermediate_size": 16},
    "qwen2_moe": {"num_experts": 8, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16},
    "deepseek_v2": _MLA | {"moe_intermediate_size": 16, "q_lora_rank": None, "topk_method": "greedy"},
    "deepseek_v3": _MLA
    | {"num_local_experts": 8, "moe_intermediate_size": 16, "q_lora_rank": 16, "n_group": 2, "topk_group": 2},
}
FAMILIES = tuple(SHAPES)
TOP_K, EXPERTS = 4, 8


def build_moe(
    family: str = "qwen3_moe", *, layers: int = 3, dtype: torch.dtype = torch.float64, **changes: Any
) -> Any:
    """Build a model of `family` with 8 experts a layer, 4 a token, in float64 unless told otherwise."""
    shape = {"vocab_size": 61, "num_experts_per_tok": TOP_K, **SHAPES[family]}
    model: Any = build_model(family, layers=layers, **(shape | changes)).to(dtype)
    model.set_experts_implementation("eager")  # the grouped product knows no float64
    return model


def stored(folder: Path, family: str = "qwen3_moe", **changes: Any) -> Any:
    """Save a model and its expert store in `folder`; return the model."""
    model = build_moe(family, **changes)
    model.save_pretrained(folder)
    make_store(folder)
    return model


def offloaded(folder: Path, budget: float = 0.5, **settings: Any) -> tuple[Loaded, ResidentSet]:
    """Load what `stored` wrote, with its resident set."""
    loaded = load_offloaded(folder, budget, **settings)
    resident = resident_of(Target.of(loaded.model).layers)
    assert resident is not None
    return loaded, resident


def greedy(model: Any, rows: list[list[int]], new: int = 16, eos: int | None = None) -> list[list[int]]:
    """Return transformers' own greedy continuation of each row."""
    found = []
    for row in rows:
        ids = model.generate(
            torch.tensor([row]), do_sample=False, max_new_tokens=new, eos_token_id=eos, pad_token_id=0
        )
        found.append(ids[0, len(row) :].tolist())
    return found

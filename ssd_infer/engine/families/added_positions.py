"""Families that look positions up in a table and add them to the embeddings of tokens."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor, nn

from ssd_infer.engine.cache import RowCache
from ssd_infer.engine.families.base import CausalFamily, Enter, Found, Parts, Sublayers
from ssd_infer.engine.window import Window


def positions_of(config: Any) -> int:
    """Return how many positions the table holds."""
    return int(config.max_position_embeddings)


def _within(window: Window, limit: int) -> Tensor:
    """Return the positions of `window`; what a draft runs past the last one is never emitted."""
    ids = window.position_ids
    return ids if window.end + window.geometry.origin <= limit else ids.clamp(max=limit - 1)


def gpt2_enter(found: Found) -> Enter:
    """Return what adds `wpe` of a position to `wte` of a token."""
    tokens, table, limit = found.embedding, cast(nn.Module, found.base.wpe), positions_of(found.config)

    def enter(ids: Tensor, window: Window, cache: RowCache) -> Tensor:
        del cache
        hidden: Tensor = tokens(ids) + table(_within(window, limit))
        return hidden

    return enter


def opt_enter(found: Found) -> Enter:
    """Return what embeds tokens, widens them where the model does, and adds positions."""
    base: Any = found.base
    tokens, widen, table, limit = (
        found.embedding,
        base.project_in,
        base.embed_positions,
        positions_of(found.config),
    )

    def enter(ids: Tensor, window: Window, cache: RowCache) -> Tensor:
        del cache
        hidden = tokens(ids) if widen is None else widen(tokens(ids))
        placed: Tensor = hidden + table(None, position_ids=_within(window, limit))
        return placed

    return enter


GPT2 = CausalFamily(
    name="gpt2",
    model_types=("gpt2", "gpt_bigcode"),
    parts=Parts(embedding="wte", layers="h", norm=("ln_f",), rotary=None),
    sublayers=Sublayers(attention="attn", serving={"attention": ("ln_1",), "mlp": ("ln_2",)}),
    enter=gpt2_enter,
    positions=positions_of,
)
OPT = CausalFamily(
    name="opt",
    model_types=("opt",),
    parts=Parts(base=("model", "decoder"), norm=("final_layer_norm", "project_out"), rotary=None),
    sublayers=Sublayers(
        mlp="fc2", serving={"attention": ("self_attn_layer_norm",), "mlp": ("final_layer_norm", "fc1")}
    ),
    enter=opt_enter,
    positions=positions_of,
)

"""Draft heads by kind and size: which may be tried, and how one is made for a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from ssd_infer.engine.heads.context import ContextHead
from ssd_infer.engine.heads.head import DraftHead, FullHead
from ssd_infer.engine.heads.lowrank import RANK, LowRankHead, Preview, preview_of
from ssd_infer.engine.heads.rows import HeadRows, restricted_reason, rows_of
from ssd_infer.engine.heads.static import StaticHead
from ssd_infer.engine.target import Target
from ssd_infer.tuning.head_ground import cached_ground, state_moments
from ssd_infer.tuning.memo import Memo

SIZES = (1024, 2048, 4096, 8192, 16384)
"""Sizes that compete, as far as they are at most half of the vocabulary."""
LOOKED_AT = (256, 1024, 4096)
"""Sizes of a low-rank head that compete: those are the tokens it scores after a rough look at all."""
LEAST_VOCABULARY = 2 * SIZES[0]


@dataclass(frozen=True, slots=True)
class HeadOption:
    """A kind of draft head, and how many tokens it looks at; 0 for all of them."""

    kind: str = "full"
    size: int = 0

    def describe(self) -> str:
        """Say the option in a word."""
        return self.kind if self.kind == "full" else f"{self.kind} {self.size}"


FULL = HeadOption()
Made = TypeVar("Made")
_rows: Memo[tuple[int, HeadRows]] = Memo()
_previews: Memo[tuple[int, Preview]] = Memo()
"""What the last head of a model was made of, by its size or depth: several at a time would be as large as a model."""


def head_bytes(target: Target, option: HeadOption) -> int:
    """Return the bytes a head of `option` holds beside the model's; a context head more for the text of each row."""
    if option.kind == "full":
        return 0
    head: Any = target.head
    rows, width = head.weight.shape
    held = (rows + width) * min(RANK, width) if option.kind == "lowrank" else option.size * width
    return int(held * head.weight.element_size())


def usual_size(vocabulary: int) -> int:
    """Return the size of a head that nobody chose: a quarter of the vocabulary, 8,192 at most."""
    return max(1, min(SIZES[3], vocabulary // 4))


def head_options(target: Target, kind: str, size: int | str) -> list[HeadOption]:
    """Return the restricted heads that compete with the full one, of a `kind` or all (auto), of a `size` or several.

    None where the vocabulary is small, or no part of the head can be taken, unless a kind is asked for.
    """
    vocabulary = target.vocab_size
    if kind == "full" or (
        kind == "auto" and (vocabulary < LEAST_VOCABULARY or restricted_reason(target) is not None)
    ):
        return []
    kinds = ("static", "context", "lowrank") if kind == "auto" else (kind,)
    found = []
    for one in kinds:
        known = LOOKED_AT if one == "lowrank" else SIZES
        sizes = [wanted for wanted in known if 2 * wanted <= vocabulary] or [usual_size(vocabulary)]
        found += [HeadOption(one, wanted) for wanted in (sizes if isinstance(size, str) else [size])]
    return found


def make_head(target: Target, option: HeadOption, prompts: Sequence[list[int]], depth: int) -> DraftHead:
    """Return the head of `option` for states after `depth` layers; what it needs is made of `prompts`, and kept."""
    if option.kind == "full":
        return FullHead(target)
    if option.kind == "lowrank":
        made = partial(_preview, target, prompts, depth)
        return LowRankHead(target, _latest(_previews, target, depth, made), option.size)
    ids = cached_ground(target, prompts).first(option.size).to(target.device)
    static = StaticHead(target, ids, _latest(_rows, target, option.size, partial(rows_of, target, ids)))
    return static if option.kind == "static" else ContextHead(static)


def _preview(target: Target, prompts: Sequence[list[int]], depth: int) -> Preview:
    return preview_of(target, state_moments(target, prompts, depth))


def _latest(memo: Memo[tuple[int, Made]], target: Target, key: int, make: Callable[[], Made]) -> Made:
    """Return what was made last for this model if it was made for `key`, else make it."""
    known = memo.get(target.model, "last")
    if known is None or known[0] != key:
        known = (key, make())
        memo.put(target.model, "last", known)
    return known[1]

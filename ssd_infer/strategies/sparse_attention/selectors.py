"""Which cache slots a draft reads: one interface, and the selectors that need no more than attention probabilities."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from ssd_infer.engine.cache import RowCache
from ssd_infer.engine.kernels.listener import Probs
from ssd_infer.engine.target import Target
from ssd_infer.strategies.sparse_attention.slot_budget import batch_width, budget


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the cache a selector selects from; `prompts` are the rows' prompt lengths."""

    layers: int
    kv_heads: int
    capacity: int
    prompts: tuple[int, ...]
    device: torch.device

    @classmethod
    def of(cls, target: Target, cache: RowCache, prompts: Sequence[int]) -> Shape:
        """Read the sizes of `cache`, which holds keys of `target`."""
        return cls(cache.num_layers, target.key_shape()[0], cache.capacity, tuple(prompts), target.device)


@dataclass(frozen=True, slots=True)
class Budget:
    """How much a draft may read: ⌈ratio·length⌉ slots, `min_budget` at least."""

    ratio: float
    min_budget: int


@dataclass(frozen=True, slots=True)
class Choice:
    """Slots `(L|1, B, KV|1, W)` to read; `hidden` `(B, W)` marks columns that a short row has no slot for."""

    slots: Tensor
    hidden: Tensor | None = None


class Selector(ABC):
    """Choose slots at the start of a draft; hear attention probabilities of prefill and verify passes before.

    All probabilities are those of true positions after RoPE. Slots of the window just verified are always kept.
    """

    name: ClassVar[str]
    prompt_queries: int = 0
    """Last queries of each prompt whose probabilities it wants from the prefill."""
    listens: ClassVar[bool] = False
    """Whether it wants the probabilities of verify passes."""

    def __init__(self, shape: Shape, budget: Budget) -> None:
        """Select within `shape`, reading as much as `budget` says."""
        self.shape = shape
        self.budget = budget
        self.fresh = [0] * len(shape.prompts)
        """Slots each row committed in the last verify; always read."""

    @property
    def ready(self) -> bool:
        """Tell whether there is anything to choose by; until then drafts are dense."""
        return True

    def hear(
        self, layer: int, rows: slice, heads: slice, probs: Probs, starts: list[int], first: int = 0
    ) -> None:
        """Learn from probabilities of a pass; see `Listener`."""

    def hear_prompts(self) -> None:
        """Ask for the last queries of the prompts, where nothing could be chosen before the first verify."""

    def committed(self, accepted: list[int]) -> None:
        """Note how many drafts each row accepted; its pending token became a slot too."""
        self.fresh = [count + 1 for count in accepted]

    @abstractmethod
    def choose(self, lengths: list[int], rows: list[int] | None = None) -> Choice:
        """Return what `rows` (None: all) should read, given the committed slots of every row."""

    def nbytes(self) -> int:
        """Return the bytes kept to choose by."""
        return 0

    def keep_rows(self, kept: list[int]) -> None:
        """Forget rows that ended."""
        self.fresh = [self.fresh[row] for row in kept]

    def width(self, lengths: list[int], rows: list[int] | None = None) -> int:
        """Return the slots that each of `rows` reads."""
        rule = self.budget
        return batch_width(pick(lengths, rows), pick(self.fresh, rows), rule.ratio, rule.min_budget)

    def read(self, lengths: list[int]) -> int:
        """Return the slots that the first draft step of a round reads of a row, a mean over layers and rows."""
        return self.width(lengths)


class _Scored(Selector):
    """Keep one score a slot, per layer, row and head, and read the highest besides the forced ones."""

    per_head: ClassVar[bool] = True

    def __init__(self, shape: Shape, budget: Budget) -> None:
        super().__init__(shape, budget)
        heads = shape.kv_heads if self.per_head else 1
        size = (shape.layers, len(shape.prompts), heads, shape.capacity)
        self.scores = torch.zeros(size, dtype=torch.float32, device=shape.device)
        self._heard = False

    @property
    def ready(self) -> bool:
        """Scores exist after the first pass that was heard."""
        return self._heard

    def nbytes(self) -> int:
        """Return the bytes of the scores."""
        return self.scores.numel() * self.scores.element_size()

    def forced(self, lengths: list[int]) -> list[int]:
        """Return the slot from which each row is read to its end: the window just verified."""
        return [length - fresh for length, fresh in zip(lengths, self.fresh, strict=True)]

    def choose(self, lengths: list[int], rows: list[int] | None = None) -> Choice:
        """Take the best-scored slots of every layer and head, and every slot from `forced` on."""
        scores = self.scores if rows is None else self.scores[:, rows]
        forced = pick(self.forced(lengths), rows)
        return highest(scores, pick(lengths, rows), forced, self.width(lengths, rows))

    def keep_rows(self, kept: list[int]) -> None:
        """Forget rows that ended."""
        super().keep_rows(kept)
        self.scores = self.scores[:, kept]


class Pillar(_Scored):
    """PillarAttn (arXiv 2512.01278): the probability each slot got in the last verify, mean over its queries.

    One score a layer and key/value head; all queries of the window count, those of rejected drafts included.
    """

    name = "pillar"
    listens = True

    def hear_prompts(self) -> None:
        """Take the last nine tokens of each prompt for a window that was verified."""
        self.prompt_queries = 9
        self.fresh = [min(9, prompt) for prompt in self.shape.prompts]

    def hear(
        self, layer: int, rows: slice, heads: slice, probs: Probs, starts: list[int], first: int = 0
    ) -> None:
        """Score S(j) = Σ_h Σ_i p / (G·vis(j)), vis(j) being the queries that can see slot j."""
        width = probs.weights.shape[3]
        self.scores[layer, rows, heads, first : first + probs.slots] = probs.mean()
        self._heard = True
        if heads.stop < self.shape.kv_heads:
            return
        # slots of the window itself are seen by fewer queries
        for row, start in enumerate(starts, rows.start):
            own = self.scores[layer, row, :, max(start, first) : min(start + width, first + probs.slots)]
            own *= _rarity(width, own.device)[max(0, first - start) :][: own.shape[-1]]


@cache
def _rarity(width: int, device: torch.device) -> Tensor:
    """Return T/vis(j) `(T,)` for the slots of a window: how much fewer queries see them."""
    return width / torch.arange(width, 0, -1, device=device)


class Vegas(_Scored):
    """Vegas (arXiv 2602.07223): one score a layer, the mean of first and last query over all heads."""

    name = "vegas"
    listens = True
    prompt_queries = 1
    per_head = False

    def hear(
        self, layer: int, rows: slice, heads: slice, probs: Probs, starts: list[int], first: int = 0
    ) -> None:
        """Add the probabilities of the first and the last query."""
        board = self.scores[layer, rows, 0, first : first + probs.slots]
        if heads.start == 0:
            board.zero_()
        board += probs.at(0).sum(dim=(1, 2)) + probs.at(-1).sum(dim=(1, 2))
        self._heard = True


class SnapKV(_Scored):
    """SnapKV (arXiv 2404.14469), as MagicDec drafts with it: chosen once, by the last queries of the prompt.

    Those prompt tokens and everything generated are always read, so its budget grows with the output.
    """

    name = "snapkv"
    prompt_queries = 32
    kernel = 5

    def hear(
        self, layer: int, rows: slice, heads: slice, probs: Probs, starts: list[int], first: int = 0
    ) -> None:
        """Sum over the window, average neighbours, sum over the group."""
        votes = probs.weights.sum(dim=3)
        pooled = functional.avg_pool1d(
            votes.flatten(0, 2)[:, None], self.kernel, stride=1, padding=self.kernel // 2
        )
        self.scores[layer, rows, heads, : probs.slots] = pooled.view_as(votes).sum(dim=2)
        self._heard = True

    def __init__(self, shape: Shape, budget: Budget) -> None:
        super().__init__(shape, budget)
        self._prompts = list(shape.prompts)

    def forced(self, lengths: list[int]) -> list[int]:
        """Return the first of the last prompt tokens."""
        return [max(0, prompt - self.prompt_queries) for prompt in self._prompts]

    def width(self, lengths: list[int], rows: list[int] | None = None) -> int:
        """Return the budget of the prompt and room for all that was generated."""
        rule = self.budget
        widths = []
        for prompt, length in zip(pick(self._prompts, rows), pick(lengths, rows), strict=True):
            kept = max(budget(prompt, rule.ratio, rule.min_budget), min(prompt, self.prompt_queries))
            widths.append(kept + length - prompt)
        return max(widths)

    def keep_rows(self, kept: list[int]) -> None:
        """Forget rows that ended."""
        super().keep_rows(kept)
        self._prompts = [self._prompts[row] for row in kept]


class Streaming(Selector):
    """Attention sinks and the most recent slots (StreamingLLM, arXiv 2309.17453), the same in every layer and head.

    Positions stay true ones, since keys are stored rotated.
    """

    name = "streaming"
    sinks = 4

    def choose(self, lengths: list[int], rows: list[int] | None = None) -> Choice:
        """Take the first slots and the last ones."""
        width, fresh = self.width(lengths, rows), pick(self.fresh, rows)
        lengths = pick(lengths, rows)
        columns = torch.arange(width, device=self.shape.device)
        totals = torch.tensor(lengths, device=self.shape.device)[:, None]
        sinks = min(self.sinks, max(0, width - max(fresh)))
        recent = columns + (totals - width).clamp(min=0)
        slots = torch.where(columns < sinks, columns, recent)
        return Choice(slots[None, :, None], _missing(lengths, width, self.shape.device))


def pick(values: list[int], rows: list[int] | None) -> list[int]:
    """Return the values of `rows`; all without rows."""
    return values if rows is None else [values[row] for row in rows]


def highest(scores: Tensor, lengths: list[int], forced: list[int], width: int) -> Choice:
    """Return the `width` best slots of `scores` `(L, B, KV|1, S)`: all from `forced` on, none at or past `lengths`.

    Overwrites the scores of forced and of empty slots. A row shorter than `width` is read whole.
    """
    board = scores[..., : max(lengths)]
    for row, (length, first) in enumerate(zip(lengths, forced, strict=True)):
        board[:, row, :, first:length] = torch.inf
        board[:, row, :, length:] = -torch.inf
    slots = board.topk(width, dim=-1, sorted=False).indices
    for row, length in enumerate(lengths):
        if length <= width:
            slots[:, row] = torch.arange(width, device=slots.device)
    return Choice(slots, _missing(lengths, width, scores.device))


def _missing(lengths: list[int], width: int, device: torch.device) -> Tensor | None:
    """Mark columns `(B, W)` past the end of rows shorter than `width`; None when there are none."""
    if min(lengths) >= width:
        return None
    return torch.arange(width, device=device) >= torch.tensor(lengths, device=device)[:, None]

"""Scores of some of a vocabulary, and what drafted tokens were drawn from.

A draft may look at a part S of the vocabulary V only. It stays exact where three things hold: q is the normalised law
within S that the token was really drawn from, the residual (p - q)₊ is normalised over all of V, and S hangs on nothing
but the text so far (arXiv 2211.17192 holds for any q; FR-Spec, 2502.14856, is of this kind). Laws are therefore kept
over S, and never written out over V.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Scored:
    """Logits `(…, K)` of the tokens `ids`: None for all of V in order, `(K,)`, or what broadcasts to the logits.

    An id may come up more than once; all its columns but one then hold -inf.
    """

    logits: Tensor
    ids: Tensor | None = None

    def tokens(self, columns: Tensor) -> Tensor:
        """Return the ids of `columns` `(…)`, one for each set of logits."""
        return columns if self.ids is None else _taken(self.ids, self.logits.shape, columns)

    def columns(self, tokens: Tensor) -> Tensor:
        """Return the columns of `tokens` `(…)`, one for each set of logits; K for a token that has none."""
        if self.ids is None:
            return tokens
        found = (self.ids == tokens.unsqueeze(-1)) & (self.logits > -torch.inf)
        size = self.logits.shape[-1]
        return torch.where(found.any(dim=-1), found.long().argmax(dim=-1), size)

    def last(self) -> Scored:
        """Return the scores `(…, K)` of the last position of `(…, T, K)`."""
        ids = self.ids if self.ids is None or self.ids.dim() == 1 else self.ids[..., -1, :]
        return Scored(self.logits[..., -1, :], ids)

    def through(self, rule: Callable[[Tensor], Tensor], vocabulary: int) -> Scored:
        """Return what `rule`, for scores `(…, V)` of a whole `vocabulary`, makes of these, others being -inf.

        Where it rules out all of these tokens they stay as they are: a draft must choose, and verification refuses it.
        """
        if self.ids is None:
            return Scored(rule(self.logits))
        index = self.ids.expand(self.logits.shape)
        full = self.logits.new_full((*self.logits.shape[:-1], vocabulary), -torch.inf)
        # The greater of two columns is the one that is real where an id comes up twice.
        ruled = rule(full.scatter_reduce_(-1, index, self.logits, "amax")).gather(-1, index)
        ruled = ruled.masked_fill(self.logits == -torch.inf, -torch.inf)
        nothing = ruled.amax(dim=-1, keepdim=True) == -torch.inf
        return Scored(torch.where(nothing, self.logits, ruled), self.ids)


@dataclass(frozen=True, slots=True)
class Law:
    """Distributions `(…, K)` over the tokens `ids`: None for all of V in order, `(K,)`, or what broadcasts to them.

    An id that comes up more than once has probability in one of its columns only.
    """

    probs: Tensor
    ids: Tensor | None = None

    def of(self, tokens: Tensor) -> Tensor:
        """Return the probability `(…)` of `tokens` `(…)`, one for each distribution; 0 for one that was no choice."""
        index = tokens.unsqueeze(-1)
        if self.ids is None:
            return self.probs.gather(-1, index).squeeze(-1)
        return self.probs.masked_fill(self.ids != index, 0.0).sum(dim=-1)

    def at(self, *index: Tensor) -> Law:
        """Return the distributions at `index`, tensors for the leading dimensions as torch indexes by them."""
        if self.ids is None or self.ids.dim() == 1:
            return Law(self.probs[index], self.ids)
        return Law(self.probs[index], self.ids.expand(self.probs.shape)[index])

    def left_of(self, p: Tensor) -> Tensor:
        """Return (p - q)₊ over all of V, for `p` `(…, V)` and as many distributions; not normalised."""
        if self.ids is None:
            return (p - self.probs).clamp_(min=0.0)
        return p.scatter_add(-1, self.ids.expand(self.probs.shape), -self.probs).clamp_(min=0.0)

    def without(self, tokens: Tensor) -> Law:
        """Return the distributions `(…, K)` without `tokens` `(…)`, normalised; nothing is left of a certain one."""
        index = tokens.unsqueeze(-1)
        if self.ids is None:
            left = self.probs.scatter(-1, index, 0.0)
        else:
            left = self.probs.masked_fill(self.ids == index, 0.0)
        total = left.sum(dim=-1, keepdim=True)
        return Law(left / torch.where(total > 0, total, 1.0), self.ids)

    def first(self, width: int) -> Law:
        """Return the first `width` of laws `(B, γ)`."""
        ids = self.ids
        return Law(self.probs[:, :width], ids if ids is None or ids.dim() == 1 else ids[:, :width])

    def widened(self, width: int) -> Law:
        """Return laws `(B, width)` that begin with these `(B, γ)`, with room to `put` more."""
        probs = _with_room(self.probs, width)
        if self.ids is None or self.ids.dim() == 1:
            return Law(probs, self.ids)
        return Law(probs, _with_room(self.ids.expand(self.probs.shape), width))

    def put(self, index: tuple[Tensor, ...], law: Law) -> None:
        """Write `law`, of the same kind of ids, to `index` of laws that `widened` made."""
        self.probs[index] = law.probs
        if self.ids is not None and self.ids.dim() > 1 and law.ids is not None:
            self.ids[index] = law.ids.expand(law.probs.shape)

    @classmethod
    def joined(cls, parts: Sequence[Law], join: Callable[..., Tensor]) -> Law | None:
        """Put laws of one kind of ids side by side in dimension 1, by `torch.stack` or `torch.cat`; None for none."""
        if not parts:
            return None
        probs, first = join([law.probs for law in parts], dim=1), parts[0].ids
        if first is None or first.dim() == 1:
            return cls(probs, first)
        ids = [law.ids.expand(law.probs.shape) for law in parts if law.ids is not None]
        return cls(probs, join(ids, dim=1))


def _with_room(values: Tensor, width: int) -> Tensor:
    wide = values.new_zeros((values.shape[0], width, values.shape[-1]))
    wide[:, : values.shape[1]] = values
    return wide


def _taken(ids: Tensor, shape: Sequence[int], columns: Tensor) -> Tensor:
    """Return the ids in `columns` `(…)` of tables `ids` that broadcast to `shape` `(…, K)`."""
    if ids.dim() == 1:
        return ids[columns]
    return ids.expand(shape).gather(-1, columns.unsqueeze(-1)).squeeze(-1)

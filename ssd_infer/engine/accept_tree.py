"""Which path of a token tree is accepted: greedy along the argmax, or recursive rejection over siblings.

Recursive rejection (SpecInfer 2305.09781, Sequoia 2402.12374), at a node with target law p and draft law q: the first
child x is accepted with probability min(1, p(x)/q(x)); otherwise p becomes norm(max(0, p - q)), q becomes q without x,
renormalised, and the next child is tried. Where no child is accepted the next token is drawn from what p has become;
at a leaf that is the target's own law. A child that was not drawn but copied has a one-hot q: rejecting it takes its
token out of p. That is exact because siblings are drawn without replacement, and because which children a node has
depends on the text before them and on q alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ssd_infer.engine.laws import Law
from ssd_infer.engine.sampling import Sampler
from ssd_infer.engine.tree import ABSENT, TreeDraft
from ssd_infer.engine.uniforms import Purpose


def accept_tree(logits: Tensor, tokens: Tensor, draft: TreeDraft, sampler: Sampler) -> tuple[Tensor, Tensor]:
    """Return the accepted nodes of each row and its next token `(B,)`.

    `logits` `(B, N+1, V)` are the target's after the pending token and each node, `tokens` `(B, N)` those of the nodes.
    Accepted nodes `(B, depth)` are in their order, followed by -1.
    """
    if sampler.greedy:
        return _along_the_argmax(logits, tokens, draft)
    return _by_rejection(logits, tokens, draft, sampler)


def _along_the_argmax(logits: Tensor, tokens: Tensor, draft: TreeDraft) -> tuple[Tensor, Tensor]:
    choices = logits.argmax(dim=-1)
    current = tokens.new_zeros(len(tokens))
    wanted = choices[:, 0]
    path = []
    for _ in range(draft.tree.depth):
        hits = draft.children(current) & (tokens == wanted.unsqueeze(1))
        found, node = hits.int().max(dim=1)
        # A row that found no child stays where it is, and finds none again.
        current = torch.where(found > 0, node + 1, current)
        wanted = choices.gather(1, current.unsqueeze(1)).squeeze(1)
        path.append(torch.where(found > 0, current, ABSENT))
    return torch.stack(path, dim=1), wanted


def _by_rejection(
    logits: Tensor, tokens: Tensor, draft: TreeDraft, sampler: Sampler
) -> tuple[Tensor, Tensor]:
    probs, numbers = sampler.probs(logits), sampler.uniform(tokens)
    rows = torch.arange(len(tokens), device=tokens.device)
    current, going = torch.zeros_like(rows), torch.ones_like(rows, dtype=torch.bool)
    left = probs[:, 0]
    path = torch.full((len(tokens), draft.tree.depth), ABSENT, device=tokens.device)
    for depth in range(draft.tree.depth):
        trial = _Trial(left, draft.children(current) & going.unsqueeze(1), draft)
        chosen = trial.run(tokens, numbers)
        going = chosen != ABSENT
        if not bool(going.any()):
            left = trial.left
            break
        path[:, depth] = chosen
        current = torch.where(going, chosen, current)
        left = torch.where(going.unsqueeze(1), probs[rows, current], trial.left)
    return path, sampler.draw(left, Purpose.FOLLOW)


class _Trial:
    """The children of one node of every row, tried in turn."""

    def __init__(self, left: Tensor, waiting: Tensor, draft: TreeDraft) -> None:
        """Begin with the target's law `left` `(B, V)` and the children `waiting` `(B, N)`."""
        self.left, self._waiting = left, waiting
        self._rows = torch.arange(len(left), device=left.device)
        self._drawn = draft.drawn
        self._q: Law | None = None
        if draft.laws is not None and draft.drawn is not None:
            law = torch.where(waiting, draft.drawn, ABSENT).amax(dim=1)
            self._q = draft.laws.at(self._rows, law.clamp(min=0))

    def run(self, tokens: Tensor, numbers: Tensor) -> Tensor:
        """Return the accepted child `(B,)` of each row, -1 where none is; `left` then is what rejections left."""
        chosen = torch.full_like(self._rows, ABSENT)
        while bool(self._waiting.any()):
            tried, node = self._waiting.int().max(dim=1)
            there = tried > 0
            token = tokens[self._rows, node]
            drawn = self._chance(node, token)
            passed = there & (numbers[self._rows, node] * drawn < self.left[self._rows, token])
            chosen = torch.where(passed, node + 1, chosen)
            self._reject(there & ~passed, node, token)
            self._waiting = self._waiting & ~passed.unsqueeze(1)
            self._waiting[self._rows, node] = False
        return chosen

    def _certain(self, node: Tensor) -> Tensor:
        """Return which of the nodes `(B,)` were not drawn."""
        if self._drawn is None:
            return torch.ones_like(node, dtype=torch.bool)
        return self._drawn.expand(len(node), -1)[self._rows, node] < 0

    def _chance(self, node: Tensor, token: Tensor) -> Tensor:
        """Return the probability `(B,)` each row's token had of being this child."""
        if self._q is None:
            return torch.ones_like(token, dtype=self.left.dtype)
        return torch.where(self._certain(node), 1.0, self._q.of(token))

    def _reject(self, rejected: Tensor, node: Tensor, token: Tensor) -> None:
        """Take what the rejected child could have been out of p, and its token out of q."""
        without = self.left.scatter(1, token.unsqueeze(1), 0.0)
        if self._q is not None:
            certain = self._certain(node).unsqueeze(1)
            without = torch.where(certain, without, self._q.left_of(self.left))
            self._q = self._q.without(token)
        total = without.sum(dim=-1, keepdim=True)
        # p == q to the last bit leaves nothing; such a rejection has probability 0 and p is then the right law.
        usable = rejected.unsqueeze(1) & (total > 0)
        self.left = torch.where(usable, without / total, self.left)

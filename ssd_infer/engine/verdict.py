"""What one verify pass decided, on the host: how far each row's drafts are accepted, and what follows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ssd_infer.engine.accept_tree import accept_tree
from ssd_infer.engine.acceptance import accept
from ssd_infer.engine.cache import RowCache
from ssd_infer.engine.sampling import Sampler
from ssd_infer.engine.session import Proposal
from ssd_infer.engine.tree import TreeDraft


@dataclass(slots=True)
class Verdict:
    """Accepted and drafted tokens of every row, and the tokens it goes on with."""

    following: Tensor
    """The token after the accepted ones `(B,)`, on the device."""
    blocks: list[list[int]]
    """Accepted drafts of each row, then the token that follows."""
    drafted: list[int]
    accepted: list[int]

    def drafted_within(self, row: int, tokens: int) -> int:
        """Return how many drafts of a row stand among the next `tokens` tokens."""
        return min(self.drafted[row], tokens)

    def refused(self, row: int, emitted: int) -> bool:
        """Tell whether drafts of a row were refused within the `emitted` tokens that its block was cut to."""
        return self.accepted[row] < min(self.drafted[row], emitted)

    def accepted_nodes(self) -> list[list[int]] | None:
        """Return the accepted nodes of each row's tree, from the root; None for chains."""
        return None

    def move_accepted(self, cache: RowCache, lengths: list[int]) -> None:
        """Bring what the cache holds of accepted drafts to the slots after `lengths`; drafts of a chain are there."""


@dataclass(slots=True)
class TreeVerdict(Verdict):
    """A verdict on trees."""

    path: list[list[int]]
    """Accepted nodes of each row."""
    levels: list[list[int]]
    """Depth of every node that each row drafted."""
    open: list[bool]
    """Whether the last accepted node, or the root, had children."""

    def drafted_within(self, row: int, tokens: int) -> int:
        """Return how many nodes of a row could stand among the next `tokens` tokens."""
        return sum(level <= tokens for level in self.levels[row])

    def refused(self, row: int, emitted: int) -> bool:
        """Tell whether the children of the last accepted node were refused, and its block not cut before them."""
        return self.open[row] and emitted > self.accepted[row]

    def accepted_nodes(self) -> list[list[int]]:
        """Return the accepted nodes of each row's tree."""
        return self.path

    def move_accepted(self, cache: RowCache, lengths: list[int]) -> None:
        """Move the accepted path of each row to the slots after its length, but for nodes that lie there."""
        moves = [
            (row, length + node, length + place)
            for row, (length, nodes) in enumerate(zip(lengths, self.path, strict=True))
            for place, node in enumerate(nodes, start=1)
            if node != place
        ]
        if moves:
            rows, sources, places = (list(part) for part in zip(*moves, strict=True))
            cache.move(rows, sources, places)


def judge(logits: Tensor, proposal: Proposal, sampler: Sampler) -> Verdict:
    """Accept drafts by the target's `logits` `(B, γ+1, V)`: where a round waits for the device."""
    if proposal.tree is not None:
        return _judge_tree(logits, proposal.tokens, proposal.tree, sampler)
    accepted, following = accept(
        logits, proposal.tokens, proposal.counts, proposal.law, sampler, proposal.unverified
    )
    parts = [proposal.tokens, accepted.unsqueeze(1), following.unsqueeze(1)]
    if proposal.counts is not None:
        parts.append(proposal.counts.unsqueeze(1))
    table, gamma = torch.cat(parts, dim=1).tolist(), proposal.width
    taken = [line[gamma] for line in table]
    counts = [line[gamma + 2] if proposal.counts is not None else gamma for line in table]
    blocks = [[*line[:count], line[gamma + 1]] for line, count in zip(table, taken, strict=True)]
    return Verdict(following, blocks, counts, taken)


def _judge_tree(logits: Tensor, tokens: Tensor, draft: TreeDraft, sampler: Sampler) -> TreeVerdict:
    path, following = accept_tree(logits, tokens, draft, sampler)
    words = tokens.gather(1, (path - 1).clamp(min=0))
    parts = [path, words, following.unsqueeze(1)]
    if draft.present is not None:
        parts.append(draft.present.long())
    table, depth = torch.cat(parts, dim=1).tolist(), draft.tree.depth
    found = TreeVerdict(following, [], [], [], [], [], [])
    for row, line in enumerate(table):
        nodes = [node for node in line[:depth] if node > 0]
        there = line[2 * depth + 1 :] if draft.present is not None else None
        _add_row(found, draft, row, nodes, there)
        found.blocks.append([*line[depth : depth + len(nodes)], line[2 * depth]])
    return found


def _add_row(
    found: TreeVerdict, draft: TreeDraft, row: int, nodes: list[int], there: list[int] | None
) -> None:
    """Count the nodes of one row; `there` says which are present."""
    last = nodes[-1] if nodes else 0
    levels, goes_on = [], False
    for node, (parent, level) in enumerate(
        zip(draft.tree.row(row), draft.tree.row_levels(row)[1:], strict=True)
    ):
        if level and (there is None or there[node]):
            levels.append(level)
            goes_on = goes_on or parent == last
    found.path.append(nodes)
    found.levels.append(levels)
    found.open.append(goes_on)
    found.drafted.append(len(levels))
    found.accepted.append(len(nodes))

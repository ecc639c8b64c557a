"""Copies as branches beside the tree that an exit has drafted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ssd_infer.engine.session import Proposal
from ssd_infer.engine.tree import ABSENT, Tree, TreeDraft
from ssd_infer.strategies.ngram.copy_tree import CopyTree
from ssd_infer.strategies.ngram.copy_trees import padded


@dataclass(slots=True)
class Joined:
    """A row's drafted tree with copies in it."""

    tokens: list[int]
    """Those of added nodes."""
    parents: list[int]
    """Of added nodes."""
    places: list[int]
    """Which node stands for each node of the copy."""

    def path(self, accepted: Sequence[int]) -> list[int]:
        """Return which nodes of the copy stand for `accepted` nodes."""
        among = set(accepted)
        return [node for node, place in enumerate(self.places, start=1) if place in among]


def join(tokens: Sequence[int], parents: Sequence[int], copy: CopyTree) -> Joined:
    """Hang a copy into a drafted tree: where a draft is what is copied, its node stands for both.

    Added nodes have higher numbers than all drafted ones, and are tried after them. That keeps sampling exact although
    which copies are added depends on what was drawn: to try a token that was not drawn, and to leave it out when it is
    refused, is to draw from what the drawn siblings have left of the target's law.
    """
    known = {
        (parent, token): node
        for node, (token, parent) in reversed(list(enumerate(zip(tokens, parents, strict=True), start=1)))
        if parent != ABSENT
    }
    found = Joined([], [], [])
    for token, above in zip(copy.tokens, copy.parents, strict=True):
        parent = found.places[above - 1] if above else 0
        node = known.get((parent, token))
        if node is None:
            found.tokens.append(token)
            found.parents.append(parent)
            node = len(tokens) + len(found.tokens)
        found.places.append(node)
    return found


def add(proposal: Proposal, joined: Sequence[Joined]) -> Proposal:
    """Return `proposal`, a tree, with the added nodes; the target's own states of those are still missing."""
    draft = proposal.tree
    assert draft is not None
    width = max(len(one.tokens) for one in joined)
    if width == 0:
        return proposal
    device = proposal.tokens.device
    more = torch.tensor([padded(one.tokens, width, 0) for one in joined], device=device)
    parents = [[*draft.tree.row(row), *padded(one.parents, width, ABSENT)] for row, one in enumerate(joined)]
    present, drawn = draft.present, draft.drawn
    if present is not None:
        present = torch.cat([present, torch.ones_like(more, dtype=torch.bool)], dim=1)
    if drawn is not None:
        drawn = torch.cat([drawn, torch.full((1, width), ABSENT, device=device)], dim=1)
    tokens: Tensor = torch.cat([proposal.tokens, more], dim=1)
    return replace(proposal, tokens=tokens, tree=TreeDraft(Tree(parents, device), present, draft.laws, drawn))

"""Blocks of own text, each of whole documents, and their mixture with blocks of a corpus."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from ssd_train.data.own_text.writing import Document

Sample = dict[str, Tensor]


class OwnBlocks(Dataset[Sample]):
    """Samples `input_ids` and `labels`, both `(block_size,)`; labels are -100 where the target did not write."""

    def __init__(self, documents: Iterable[Document], block_size: int, fill: int) -> None:
        """Put `documents` into as few blocks as first-fit does; what stays empty holds the token `fill`."""
        self.block_size, self.fill = block_size, fill
        self.blocks = _packed([(prompt, text) for prompt, text in documents if text], block_size)

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, index: int) -> Sample:
        ids = torch.full((self.block_size,), self.fill, dtype=torch.long)
        labels = torch.full_like(ids, -100)
        place = 0
        for prompt, text in self.blocks[index]:
            begin, end = place + len(prompt), place + len(prompt) + len(text)
            ids[place:end] = torch.tensor([*prompt, *text])
            labels[begin:end] = ids[begin:end]
            place = end
        return {"input_ids": ids, "labels": labels}


def _packed(documents: Sequence[Document], size: int) -> list[list[Document]]:
    """Return bins of documents that fit into `size` tokens, longest first (first-fit decreasing); none is cut."""
    bins: list[tuple[int, list[Document]]] = []
    open_from, smallest = 0, min((len(prompt) + len(text) for prompt, text in documents), default=0)
    for prompt, text in sorted(documents, key=lambda one: -len(one[0]) - len(one[1])):
        need = len(prompt) + len(text)
        at = next((at for at in range(open_from, len(bins)) if bins[at][0] >= need), None)
        if at is None:
            bins.append((size - need, [(prompt, text)]))
        else:
            bins[at] = (bins[at][0] - need, [*bins[at][1], (prompt, text)])
        while open_from < len(bins) and bins[open_from][0] < smallest:  # full for all of them
            open_from += 1
    return [found for _, found in bins]


class Mixture(Dataset[Sample]):
    """Own blocks and blocks of a corpus, a fixed share of each; the side that is too short begins again."""

    def __init__(self, own: Dataset[Any], corpus: Dataset[Any], share: float) -> None:
        """Mix so that `share` of the blocks are own ones and every block of both sides is there."""
        self.own, self.corpus, self.share = own, corpus, share
        counts = [len(own) / share]  # type: ignore[arg-type]
        if share < 1:
            counts.append(len(corpus) / (1 - share))  # type: ignore[arg-type]
        self.count = max(1, round(max(counts)))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Sample:
        """Return block `index`: an own one each time the running share passes a whole number."""
        before, now = int(index * self.share), int((index + 1) * self.share)
        if now > before:
            return self.own[before % len(self.own)]  # type: ignore[arg-type,no-any-return]
        ids = self.corpus[(index - before) % len(self.corpus)]["input_ids"]  # type: ignore[arg-type]
        return {"input_ids": ids, "labels": ids.clone()}

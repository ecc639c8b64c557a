"""Quest (arXiv 2406.10774): pages of slots, chosen anew at every draft step by what the query could find in them."""

from __future__ import annotations

import torch
from torch import Tensor

from ssd_infer.engine.cache import RowCache
from ssd_infer.engine.kernels.grouped import selected_attention, window_attention
from ssd_infer.strategies.sparse_attention.selectors import Budget, Choice, Selector, Shape
from ssd_infer.strategies.sparse_attention.working_set import flat_index, take


class Quest(Selector):
    """Bound each page's scores by its per-channel extremes, and read the pages with the highest bounds.

    Σ_d max(q_d·min_d, q_d·max_d) is q⁺·max - q⁻·min, so all pages are scored by one product. Heads of a group read
    the same pages: the best bound of any of them counts. The first two layers are dense, as in the paper; the page in
    use, and drafts, are always read.
    """

    name = "quest"
    page = 16
    dense_layers = 2

    def __init__(self, shape: Shape, budget: Budget) -> None:
        super().__init__(shape, budget)
        self._extremes: list[Tensor] = []
        self._seen = [0] * len(shape.prompts)
        self._cache: RowCache | None = None
        self._lengths: list[int] = []

    def choose(self, lengths: list[int], rows: list[int] | None = None) -> Choice:
        """Refuse: pages are chosen while attending."""
        raise NotImplementedError("quest chooses inside attention; call `prepare`")

    def prepare(self, cache: RowCache, lengths: list[int]) -> None:
        """Bring the extremes of full pages up to date before a draft over `cache`."""
        self._cache, self._lengths = cache, lengths
        first, last = min(self._seen) // self.page, max(lengths) // self.page
        for layer in range(self.shape.layers):
            keys, _ = cache.held(layer)
            if len(self._extremes) <= layer:
                pages = keys.shape[2] // self.page
                self._extremes.append(keys.new_zeros((*keys.shape[:2], pages, 2 * keys.shape[3])))
            if last > first:
                paged = keys[:, :, first * self.page : last * self.page].unflatten(2, (-1, self.page))
                bounds = torch.cat([paged.amax(dim=3), paged.amin(dim=3)], dim=-1)
                self._extremes[layer][:, :, first:last] = bounds
        self._seen = list(lengths)

    def read(self, lengths: list[int]) -> int:
        """Count whole rows in dense layers; elsewhere the pages, the tail, and extremes as large as a slot a page."""
        full = [length // self.page for length in lengths]
        tail = max(length % self.page for length in lengths)
        chosen = self._pages(lengths, max(full)) * self.page + tail
        dense = min(self.dense_layers, self.shape.layers)
        sparse = (self.shape.layers - dense) * sum(chosen + pages for pages in full)
        return round((dense * sum(lengths) + sparse) / (self.shape.layers * len(lengths)))

    def _pages(self, lengths: list[int], most: int) -> int:
        """Return how many of at most `most` pages every row reads."""
        return min(most, max(3, self.width(lengths) // self.page))

    def nbytes(self) -> int:
        """Return the bytes of the pages' extremes."""
        return sum(layer.numel() * layer.element_size() for layer in self._extremes)

    def keep_rows(self, kept: list[int]) -> None:
        """Forget rows that ended."""
        super().keep_rows(kept)
        self._seen = [self._seen[row] for row in kept]
        self._extremes = [layer[kept] for layer in self._extremes]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Attend from one query a row `(B, H, 1, D)` to the best pages; see `Attend`."""
        assert self._cache is not None
        window = self._cache.window
        if layer < self.dense_layers or not self._extremes[layer].shape[2]:
            return window_attention(layer, query, key, value, scaling, window, None)
        slots, hidden = self._slots(layer, query, window.starts)
        keys, values = self._cache.held(layer)
        rows = flat_index(slots, keys)
        keys, values = take(keys, rows, slots.shape[-1]), take(values, rows, slots.shape[-1])
        mask = torch.zeros(hidden.shape, dtype=query.dtype, device=query.device)
        return selected_attention(query, keys, values, scaling, mask.masked_fill_(hidden, -torch.inf))

    def _slots(self, layer: int, query: Tensor, now: list[int]) -> tuple[Tensor, Tensor]:
        """Return slots `(B, KV, W)` and which of them `(B, KV, 1, W)` are not to be seen by queries at slots `now`."""
        bounds = self._bounds(layer, query)
        full = torch.tensor(self._lengths, device=query.device) // self.page
        count = self._pages(self._lengths, bounds.shape[-1])
        beyond = torch.arange(bounds.shape[-1], device=query.device) >= full[:, None]
        best = bounds.masked_fill(beyond[:, None], -torch.inf).topk(count, dim=-1, sorted=False)
        inside = torch.arange(self.page, device=query.device)
        paged = (best.indices.unsqueeze(-1) * self.page + inside).flatten(2)
        unused = (best.values == -torch.inf).repeat_interleave(self.page, dim=-1)
        ends = torch.tensor(now, device=query.device)
        widest = max(
            at - length // self.page * self.page for at, length in zip(now, self._lengths, strict=True)
        )
        tail = (full * self.page)[:, None] + torch.arange(widest + 1, device=query.device)
        late = tail > ends[:, None]
        shape = (*paged.shape[:2], widest + 1)
        slots = torch.cat([paged, tail.clamp(max=self.shape.capacity - 1)[:, None].expand(shape)], dim=-1)
        return slots, torch.cat([unused, late[:, None].expand(shape)], dim=-1).unsqueeze(2)

    def _bounds(self, layer: int, query: Tensor) -> Tensor:
        """Return the highest bound `(B, KV, P)` of any head in a group."""
        extremes = self._extremes[layer]
        folded = query.reshape(query.shape[0], extremes.shape[1], -1, query.shape[-1])
        signed = torch.cat([folded.clamp(min=0), folded.clamp(max=0)], dim=-1)
        return (signed @ extremes.transpose(-1, -2)).amax(dim=2).float()

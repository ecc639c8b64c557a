"""Prompts that are prefilled once: every contender of a measurement goes on from the same cache.

A decoding writes past its prompt only, so the slots of the prompts serve any number of decodings, one after another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache

from ssd_infer.checkpoint.content import text_digest, weights_digest
from ssd_infer.engine.cache import RowCache
from ssd_infer.engine.kernels.plain import grouped_layers
from ssd_infer.engine.loop import Decoding
from ssd_infer.engine.sampling import Sampler, SamplingParams
from ssd_infer.engine.session import Row, Session, open_session
from ssd_infer.engine.stats import Stats
from ssd_infer.engine.stopping import StopRule
from ssd_infer.engine.target import Target

_FORM = 2
"""Of the files of kept rows; another number is another file."""
ROOM = 64
"""Slots beyond twice the tokens to decode, for drafts."""


@dataclass(frozen=True, slots=True)
class FilledRow:
    """One prompt after its prefill: its first token, and what a cache has `taken` of it."""

    prompt: list[int]
    first: int
    kept: Mapping[str, Any]


class Prefilled:
    """A batch of prefilled rows, each with its first token; opens sessions that decode on."""

    def __init__(
        self, target: Target, rows: Sequence[FilledRow], batch: int, new_tokens: int, room: int = ROOM
    ) -> None:
        """Lay `batch` rows into one cache, repeating `rows` when they are fewer.

        Each has room for twice `new_tokens`, since rows accept at different speeds, and for `room` slots of drafts.
        """
        self.target = target
        self.rows = [rows[place % len(rows)] for place in range(batch)]
        self.most = 2 * new_tokens + room
        self.capacity = max(len(row.prompt) for row in rows) + self.most
        self.cache = target.new_cache(batch, self.capacity)
        self.cache.lay([row.kept for row in self.rows])

    @property
    def prompts(self) -> list[list[int]]:
        """The prompt of every row."""
        return [row.prompt for row in self.rows]

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot of one row over all layers and heads, recurrent states apart."""
        return RowCache.nbytes(self.cache) // (len(self.rows) * self.capacity)

    def session(self) -> Session:
        """Return a session whose rows wait with their first token."""
        cache = self.target.new_cache(len(self.rows), self.capacity)
        cache.share(self.cache)
        lengths = [len(row.prompt) for row in self.rows]
        return Session(
            self.target,
            greedy_sampler(self.target),
            self.target.geometry(self.capacity, prompts=lengths),
            cache,
            [
                Row(index, [*row.prompt, row.first], len(row.prompt), self.most)
                for index, row in enumerate(self.rows)
            ],
            torch.tensor([row.first for row in self.rows], device=self.target.device),
            lengths,
        )

    def transformers_cache(self) -> DynamicCache | None:
        """Return a copy of the cache as transformers keeps it; all prompts must have one length.

        None where the model keeps more than keys and values of every layer.
        """
        kept = self.rows[0].kept
        if self.target.recurrent or kept["beside"] or any(keys is None for keys in kept["keys"]):
            return None
        (width,) = {len(row.prompt) for row in self.rows}
        cache = DynamicCache(config=self.target.config)
        for layer in range(self.target.num_layers):
            keys, values = self.cache.held(layer)
            cache.update(keys[:, :, :width].clone(), values[:, :, :width].clone(), layer)
        return cache


@torch.inference_mode()
def prefill(target: Target, prompt: list[int]) -> FilledRow:
    """Run `prompt` through the model."""
    session = open_session(target, [prompt], 1, 0, greedy_sampler(target))
    session.layers = grouped_layers(session)
    ((first,),) = Decoding(session, None, StopRule(), Stats.empty(1)).prefill()
    return FilledRow(prompt, first, session.cache.taken(len(prompt)))


def prefill_once(target: Target, prompt: list[int], folder: Path | None) -> FilledRow:
    """Run `prompt` through the model, or map what an earlier run of the same model left in `folder`."""
    if folder is None:
        return prefill(target, prompt)
    file = folder / f"{_fingerprint(target, prompt)}.pt"
    if not file.exists():
        row = prefill(target, prompt)
        folder.mkdir(parents=True, exist_ok=True)
        torch.save({"first": row.first, "kept": dict(row.kept)}, file)
        return row
    kept = torch.load(file, map_location=target.device, mmap=target.device.type == "cpu", weights_only=True)
    return FilledRow(prompt, kept["first"], kept["kept"])


def _fingerprint(target: Target, prompt: list[int]) -> str:
    """Tell rows of other prompts, weights, configurations and precisions apart."""
    facts = [
        _FORM,
        prompt,
        str(target.dtype),
        target.config.to_json_string(use_diff=False),
        weights_digest(target.model),
    ]
    return text_digest(facts)[:16]


def greedy_sampler(target: Target) -> Sampler:
    """Return a sampler that takes the most probable token."""
    return Sampler(SamplingParams(), target.device, seed=0)

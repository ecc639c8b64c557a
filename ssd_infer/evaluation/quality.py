"""What the checkpoint knows after each layer: held-out loss, and agreement with its own last layer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ssd_infer.engine.sampling import Sampler, SamplingParams
from ssd_infer.engine.session import open_session
from ssd_infer.engine.target import Target
from ssd_infer.tuning.budget import Deadline

PIECE = 1 << 27
"""Logits of all exits between two looks at the clock: a second or two, however large the vocabulary is."""


@torch.inference_mode()
def exit_quality(target: Target, windows: list[list[int]], source: str, deadline: Deadline) -> dict[str, Any]:
    """Return per-exit loss (nats per token), perplexity and top-1 agreement over `windows`, teacher-forced.

    At least one piece of a window is measured; after `deadline` no further one is started.
    """
    sums = torch.zeros(target.num_layers, 2, dtype=torch.float64)
    tokens = 0
    for found, count in (piece for ids in windows if len(ids) > 1 for piece in _pieces(target, ids)):
        sums += found
        tokens += count
        if deadline.passed:
            break
    if not tokens:
        return {"exits": [], "reason": "no held-out text was available"}
    exits = [
        _exit(layer, float(loss / tokens), float(agree / tokens))
        for layer, (loss, agree) in enumerate(sums, 1)
    ]
    return {
        "source": source,
        "tokens": tokens,
        "loss": exits[-1]["loss"],
        "perplexity": exits[-1]["perplexity"],
        "exits": exits,
    }


def _exit(layer: int, loss: float, agreement: float) -> dict[str, float | int | None]:
    if not math.isfinite(loss):
        return {"layer": layer, "loss": None, "perplexity": None, "agreement": agreement}
    return {
        "layer": layer,
        "loss": loss,
        "perplexity": math.exp(loss) if loss < 700 else None,
        "agreement": agreement,
    }


def _pieces(target: Target, ids: list[int]) -> Iterator[tuple[Tensor, int]]:
    """Yield sums `(L, 2)` of cross-entropy and of agreement over some predicted tokens of one window, and how many."""
    session = open_session(target, [ids], 1, 0, Sampler(SamplingParams(), target.device, seed=0))
    window = session.window(len(ids) - 1)
    table = torch.tensor([ids], device=target.device)
    hidden, labels = target.embed_at(table[:, :-1], window, session.cache), table[0, 1:]
    exits = []
    for index in range(target.num_layers):
        hidden = target.run(hidden, window, session.cache, index, index + 1)
        exits.append(hidden[0])
    size = max(1, PIECE // (target.num_layers * target.vocab_size))
    for start in range(0, len(labels), size):
        some = slice(start, start + size)
        yield _sums(target, [states[some] for states in exits], labels[some]), len(labels[some])


def _sums(target: Target, exits: list[Tensor], labels: Tensor) -> Tensor:
    """Return sums `(L, 2)` over tokens, from states `(T, d)` after every layer and the tokens `(T,)` that follow."""
    losses, tops = [], []
    for states in exits:
        logits = target.logits(states).float()
        losses.append(functional.cross_entropy(logits, labels, reduction="sum"))
        tops.append(logits.argmax(-1))
    agreements = [(top == tops[-1]).sum() for top in tops]
    return torch.stack([torch.stack(losses).double(), torch.stack(agreements).double()], dim=1).cpu()

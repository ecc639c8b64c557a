"""What the checkpoint knows after each layer: held-out loss, and agreement with its own last layer."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ssd_infer.engine.sampling import Sampler, SamplingParams
from ssd_infer.engine.session import open_session
from ssd_infer.engine.target import Target
from ssd_infer.tuning.budget import Deadline


@torch.inference_mode()
def exit_quality(target: Target, windows: list[list[int]], source: str, deadline: Deadline) -> dict[str, Any]:
    """Return per-exit loss (nats per token), perplexity and top-1 agreement over `windows`, teacher-forced.

    The first window is always measured; after `deadline` no further one is started.
    """
    sums = torch.zeros(target.num_layers, 2, dtype=torch.float64)
    tokens = 0
    for ids in windows:
        if tokens and deadline.passed:
            break
        if len(ids) > 1:
            sums += _window(target, ids)
            tokens += len(ids) - 1
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


def _window(target: Target, ids: list[int]) -> Tensor:
    """Return sums `(L, 2)` of cross-entropy and of agreement over the predicted tokens of one window."""
    session = open_session(target, [ids], 1, 0, Sampler(SamplingParams(), target.device, seed=0))
    window = session.window(len(ids) - 1)
    table = torch.tensor([ids], device=target.device)
    hidden, labels = target.embed_at(table[:, :-1], window, session.cache), table[0, 1:]
    losses, tops = [], []
    for index in range(target.num_layers):
        hidden = target.run(hidden, window, session.cache, index, index + 1)
        logits = target.logits(hidden[0]).float()
        losses.append(functional.cross_entropy(logits, labels, reduction="sum"))
        tops.append(logits.argmax(-1))
    agreements = [(top == tops[-1]).sum() for top in tops]
    return torch.stack([torch.stack(losses).double(), torch.stack(agreements).double()], dim=1).cpu()

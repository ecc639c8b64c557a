"""The exact distribution of the first K sampled tokens, by enumerating every continuation the sampler allows.

Written without the engine: plain forwards of the model, and its own temperature, top-k and top-p in float64.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ssd_infer.engine.devices import input_device
from ssd_infer.strategies.study import Sampling

Cells = dict[tuple[int, ...], float]


def allowed(logits: Tensor, sampling: Sampling) -> Tensor:
    """Return the probabilities `(V,)` that `logits` `(V,)` have after temperature, top-k, then top-p."""
    scores = logits.double() / sampling.temperature
    if sampling.top_k:
        floor = scores.topk(min(sampling.top_k, scores.numel())).values[-1]
        scores = torch.where(
            scores >= floor, scores, torch.tensor(float("-inf"), dtype=scores.dtype, device=scores.device)
        )
    probs = scores.softmax(-1)
    if sampling.top_p < 1.0:
        mass = 0.0
        kept = torch.zeros_like(probs)
        for token in probs.argsort(descending=True).tolist():
            if mass >= sampling.top_p:
                break
            kept[token] = probs[token]
            mass += float(probs[token])
        probs = kept / kept.sum()
    return probs


@torch.inference_mode()
def enumerate_cells(model: Any, context: list[int], sampling: Sampling, length: int) -> Cells:
    """Return the probability of every continuation of `context` by exactly `length` tokens (no end mark)."""
    cells: Cells = {(): 1.0}
    for _ in range(length):
        prefixes = list(cells)
        ids = torch.tensor([context + list(prefix) for prefix in prefixes], device=input_device(model))
        logits = model(input_ids=ids).logits[:, -1]
        grown: Cells = {}
        for prefix, row in zip(prefixes, logits, strict=True):
            probs = allowed(row, sampling)
            for token in probs.nonzero().flatten().tolist():
                grown[(*prefix, token)] = cells[prefix] * float(probs[token])
        cells = grown
    return cells

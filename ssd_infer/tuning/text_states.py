"""Hidden states along a text that a target has written, and what it chooses from its own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ssd_infer.engine.sampling import Sampler, SamplingParams
from ssd_infer.engine.session import open_session
from ssd_infer.engine.target import Target

Text = tuple[list[int], list[int]]
"""A prompt and what the model makes of it."""


@torch.inference_mode()
def states_of(target: Target, text: Text, depths: Sequence[int] = ()) -> list[Tensor]:
    """Return hidden states `(n-1, d)` after each of `depths` (ascending) and after all layers, of a text of n tokens.

    They are those of every position from whose states a token after the first was chosen.
    """
    prompt, output = text
    ids = torch.tensor([prompt + output[:-1]], device=target.device)
    session = open_session(target, [ids[0].tolist()], 1, 0, Sampler(SamplingParams(), target.device, 0))
    window = session.window(ids.shape[1])
    hidden, first, found = target.embed_at(ids, window, session.cache), 0, []
    for depth in (*depths, target.num_layers):
        hidden = target.run(hidden, window, session.cache, first, depth)
        found.append(hidden[0, len(prompt) :])
        first = depth
    return found


def choices(sampler: Sampler, logits: Tensor) -> Tensor:
    """Return what the target chooses from `(…, V)` logits: tokens when greedy, distributions when sampling."""
    return logits.argmax(dim=-1) if sampler.greedy else sampler.probs(logits)

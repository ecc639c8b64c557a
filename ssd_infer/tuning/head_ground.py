"""What a model says by itself: which tokens it gives most probability, and what its states look like.

The tokens a draft should look at are those that verification will want: of the target's own text, not of a corpus, and
by its probabilities, not by counts (FR-Spec 2502.14856; vLLM found 2.19 tokens a round so, 2.13 with WikiText).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from ssd_infer.checkpoint.always_ids import always_ids, ending_ids, within
from ssd_infer.checkpoint.content import loaded_from
from ssd_infer.engine.loop import decode
from ssd_infer.engine.model_view import evaluating
from ssd_infer.engine.request import read_stop
from ssd_infer.engine.sampling import Sampler, SamplingParams
from ssd_infer.engine.stopping import StopRule
from ssd_infer.engine.target import Target
from ssd_infer.tuning import saved_head
from ssd_infer.tuning.memo import Memo
from ssd_infer.tuning.text_states import Text, states_of

POSITIONS, BATCH, PROMPT_TOKENS, LONGEST = 2048, 16, 96, 128
"""Positions of own text that are aimed at, in at most so many rows, of prompts and texts no longer than this."""
_SEED = 1


@dataclass(slots=True)
class HeadGround:
    """All tokens of one model in the order in which a draft should look at them."""

    order: Tensor
    """Every id once, `(V,)`: ends of text, what `always_ids` names, then by expected mass Σ_t p_t(v)."""
    positions: int
    note: str = ""
    """Why a saved order was not taken."""
    texts: list[Text] = field(default_factory=list)
    """What it was made of; none where it was read from a file."""

    def first(self, size: int) -> Tensor:
        """Return the ids `(size,)` of a static head, ascending."""
        return self.order[:size].sort().values


_grounds: Memo[HeadGround] = Memo()
_texts: Memo[list[Text]] = Memo()
_moments: Memo[Tensor] = Memo()


def cached_ground(target: Target, prompts: Sequence[list[int]]) -> HeadGround:
    """Return this model's order of tokens: kept, saved beside the checkpoint, or made of what `prompts` lead to now."""
    return _grounds.cached(target.model, "order", lambda: _found(target, prompts))


def _found(target: Target, prompts: Sequence[list[int]]) -> HeadGround:
    folder = loaded_from(target.config)
    saved, note = (None, "") if folder is None else saved_head.load(folder, target)
    if saved is not None:
        return HeadGround(saved.order, saved.positions)
    found = make_ground(target, own_text(target, prompts), folder)
    found.note = note
    if folder is not None and found.positions >= POSITIONS // 2 and len(found.texts) >= BATCH // 2:
        saved_head.save(folder, target, saved_head.SavedOrder(found.order, found.positions))
    return found


def own_text(target: Target, prompts: Sequence[list[int]]) -> list[Text]:
    """Let the target go on by itself, sampling at temperature 1, until it ends or has enough; kept for later.

    What drafts are compared on is other text, so that an order does not look better than it is.
    """

    def decoded() -> list[Text]:
        rows = [row[-PROMPT_TOKENS:] for row in prompts[:BATCH]]
        new = min(LONGEST, -(-POSITIONS // len(rows)))
        for stop in (read_stop(target.model, None, None, []), StopRule()):
            sampler = Sampler(SamplingParams(do_sample=True), target.device, _SEED)
            with evaluating(target.model):
                texts, _ = decode(target, rows, None, None, max(2, new), sampler, stop)
            found = [(row, text) for row, text in zip(rows, texts, strict=True) if len(text) > 1]
            if found:
                break
        return found

    return _texts.cached(target.model, "text", decoded)


@torch.inference_mode()
def make_ground(target: Target, texts: Sequence[Text], folder: Path | None = None) -> HeadGround:
    """Order all tokens by what the target expects along `texts`, what every draft needs in front."""
    mass = torch.zeros(target.vocab_size, dtype=torch.float64, device=target.device)
    for text in texts:
        mass += (
            target.logits(states_of(target, text)[-1]).float().softmax(dim=-1).sum(dim=0, dtype=mass.dtype)
        )
    model = target.model
    ends = ending_ids(getattr(model, "generation_config", None), getattr(model, "config", None))
    front = within([*ends, *always_ids(folder)], target.vocab_size)
    by_mass = mass.cpu().sort(descending=True, stable=True).indices
    behind = torch.ones(target.vocab_size, dtype=torch.bool)
    behind[torch.tensor(front, dtype=torch.long)] = False
    order = torch.cat([torch.tensor(front, dtype=torch.long), by_mass[behind[by_mass]]])
    return HeadGround(order, sum(len(text) - 1 for _, text in texts), "", list(texts))


@torch.inference_mode()
def state_moments(target: Target, prompts: Sequence[list[int]], depth: int) -> Tensor:
    """Return second moments `(d, d)` in float64 of normed states after `depth` layers, along the target's own text."""

    def made() -> Tensor:
        found = [
            target.normed(states_of(target, text, (depth,))[0]).cpu() for text in own_text(target, prompts)
        ]
        states = torch.cat(found).double()
        return states.T @ states

    return _moments.cached(target.model, depth, made)

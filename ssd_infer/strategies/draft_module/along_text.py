"""What a draft module makes of text that its target has written, at every position and for every drafted token.

Lossless greedy decoding emits the target's own text whatever the draft, so these states decide every round. A module
after an exit reads the target's own states of what it drafts, and drafts the k-th token of a round as it does the
first. One that reads its own output gets worse with k: it is rolled out from every position.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ssd_infer.engine.heads.head import DraftHead
from ssd_infer.engine.sampling import Sampler, SamplingParams
from ssd_infer.engine.session import Session, open_session
from ssd_infer.engine.target import Target
from ssd_infer.errors import UnsupportedModelError
from ssd_infer.models.draft_modules.exit_form import ExitModule
from ssd_infer.models.draft_modules.module import DraftModule
from ssd_infer.models.draft_modules.mtp_form import MtpModule
from ssd_infer.strategies.draft_module.module_keys import ModuleKeys
from ssd_infer.tuning.calibration_text import write_calibration_set
from ssd_infer.tuning.head_study import HeadScores, along_text
from ssd_infer.tuning.memo import Memo
from ssd_infer.tuning.text_states import Text, choices
from ssd_infer.tuning.tree_rounds import rank_chances

STEPS = 6
"""Drafts of a round that a module is rolled out for; later ones count as the last of these."""
PROMPTS, NEW_TOKENS = 8, 64


@dataclass(frozen=True, slots=True)
class Drafted:
    """One text of n tokens after its prompt, and what a module makes of it."""

    text: Text
    reference: Tensor
    """What the target chooses `(n-1, …)` for every token after the first."""
    steps: list[Tensor]
    """Un-normed states `(n-1, d)` from which the k-th draft of a round would have been chosen there."""

    def scores(self, head: DraftHead, sampler: Sampler, step: int) -> HeadScores:
        """Return what `head` makes of the k-th drafts."""
        prompt, output = self.text
        states, reference = self.steps[step].unsqueeze(0), self.reference.unsqueeze(0)
        return along_text(head, sampler, states, reference, [prompt + output[:-1]], [len(prompt)])

    def chances(self, head: DraftHead, sampler: Sampler, vocabulary: int) -> Tensor:
        """Return the chances `(D, n-1, R)` of every draft's choices by rank, as trees are judged by."""
        found = [_over_all(head, states, vocabulary) for states in self.steps]
        return torch.stack([rank_chances(self.reference, logits, sampler) for logits in found])


def _over_all(head: DraftHead, states: Tensor, vocabulary: int) -> Tensor:
    """Return logits `(n, V)` of `states` `(n, d)`: what a head of some tokens does not look at is impossible."""
    scored = head.scores(states.unsqueeze(0))
    if scored.ids is None:
        return scored.logits[0]
    full = scored.logits.new_full((len(states), vocabulary), -torch.inf)
    return full.scatter(-1, scored.ids.expand(scored.logits.shape)[0], scored.logits[0])


_texts: Memo[list[Text]] = Memo()
_drafted: Memo[list[Drafted]] = Memo()


def cached_drafted(
    target: Target, module: DraftModule, prompts: list[list[int]], do_sample: bool
) -> list[Drafted]:
    """Return what `module` makes of the target's own text after `prompts`, written and looked at the first time."""
    sampler = sampler_for(target, do_sample)

    def made() -> list[Drafted]:
        texts = _texts.cached(target.model, do_sample, lambda: _written(target, prompts, do_sample))
        return [_followed(target, module, text, sampler) for text in texts]

    return _drafted.cached(target.model, (module.serial, do_sample), made)


def sampler_for(target: Target, do_sample: bool) -> Sampler:
    """Return the sampler that drafts are compared by."""
    return Sampler(SamplingParams(do_sample=do_sample), target.device, seed=0)


@torch.inference_mode()
def _written(target: Target, prompts: list[list[int]], do_sample: bool) -> list[Text]:
    material = write_calibration_set(
        target, prompts, SamplingParams(do_sample=do_sample), NEW_TOKENS, PROMPTS
    )
    rows = material.session.rows
    return [(row.tokens[: row.prompt_length], row.tokens[row.prompt_length :]) for row in rows]


@torch.inference_mode()
def _followed(target: Target, module: DraftModule, text: Text, sampler: Sampler) -> Drafted:
    prompt, output = text
    session = open_session(target, [prompt + output[:-1]], 1, 0, sampler)
    window = session.window(len(prompt) + len(output) - 1)
    start = target.embed_at(_ids(session), window, session.cache)
    depth = module.spec.exit_layer or target.num_layers
    states = target.run(start, window, session.cache, 0, depth)
    final = target.run(states, window, session.cache, depth)[0, len(prompt) :]
    reference = choices(sampler, target.logits(final))
    if isinstance(module, ExitModule):
        own = ModuleKeys(session, module).run(states, window)
        return Drafted(text, reference, [own[0, len(prompt) :]])
    ahead = _rolled(session, module, states, start) if isinstance(module, MtpModule) else module.body(states)
    steps = enumerate(ahead, start=1)
    return Drafted(text, reference, [_at(one[0], len(prompt) - step, len(final)) for step, one in steps])


def _ids(session: Session) -> Tensor:
    return torch.tensor([session.rows[0].tokens], device=session.target.device)


def _rolled(session: Session, module: MtpModule, states: Tensor, start: Tensor) -> list[Tensor]:
    """Return the states of each step from every position; of the first alone where layers cannot be rolled out."""
    target = session.target
    window, source = session.window(states.shape[1]), module.source
    positional = {"attention_mask": window.mask(target.reach[source]), "position_ids": window.position_ids}
    if target.rotary is not None:
        positional["position_embeddings"] = window.rotary(target.kinds[source])  # type: ignore[assignment]
    try:
        return module.rolled(states, start, positional, min(STEPS, states.shape[1] - 1))
    except (UnsupportedModelError, TypeError, ValueError):
        given = module.joined(states[:, :-1], start[:, 1:])
        return [ModuleKeys(session, module).run(given, session.window(given.shape[1]))]


def _at(states: Tensor, first: int, count: int) -> Tensor:
    """Return `count` states `(count, d)` from row `first` on, which may be before the first: zeros stand there."""
    if first >= 0:
        return states[first : first + count]
    zeros = states.new_zeros((-first, states.shape[-1]))
    return torch.cat([zeros, states])[:count]

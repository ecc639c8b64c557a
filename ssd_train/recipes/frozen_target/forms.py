"""How each form drafts along a whole text: normed states, and which token each of them is about."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from ssd_infer.models.draft_modules.exit_form import ExitModule
from ssd_infer.models.draft_modules.heads_form import HeadsModule
from ssd_infer.models.draft_modules.hearing import Heard
from ssd_infer.models.draft_modules.mtp_form import MtpModule
from ssd_train.losses.draft_rows import Draft
from ssd_train.recipes.frozen_target.trainee import Trainee


@dataclass(frozen=True, slots=True)
class Drafted:
    """One draft of every token of a batch."""

    name: str
    """What metrics call it: `exit_E`, `step_K` of a rollout, or `head_K`."""
    module: str
    """The module it is of."""
    states: Tensor
    """Normed states `(B, T - shift, d)`; row t is about what the target says at token t + shift."""
    shift: int
    weight: float = 1.0
    """In the loss."""

    def at(self, row: Tensor, token: Tensor, rows: Tensor) -> Draft:
        """Return the drafts of tokens `(N,)` in rows `(N,)` of the batch; none of those before `shift`."""
        there = token >= self.shift
        states = self.states[row, (token - self.shift).clamp(min=0)]
        return Draft(states, rows, there.to(states.dtype) * self.weight)


@dataclass(frozen=True, slots=True)
class Form:
    """What a form asks of the target, and what it makes of it."""

    depths: Callable[[Trainee], list[int]]
    """Layers after which it reads the target's states, besides the last."""
    drafts: Callable[[Trainee, Heard, int, float], list[Drafted]]
    """Drafts along a text, for a number of steps on own output and the weight of each further step."""
    chained: bool
    """Whether one draft follows another (a rollout), or each is an alternative to the others (exits)."""


def _exit_depths(trainee: Trainee) -> list[int]:
    return [trainee.draft(name).spec.exit_layer for name in trainee.names]


def _exit_drafts(trainee: Trainee, heard: Heard, _steps: int, _decay: float) -> list[Drafted]:
    """Return what every exit drafts; each sees the target's true states, so that there is nothing to roll out."""
    found = []
    for name in trainee.names:
        module = cast(ExitModule, trainee.draft(name))
        states = heard.states[module.spec.exit_layer].float()
        given = trainee.target.positional(heard.positional(module), module.source, states.shape[1])
        found.append(Drafted(name, name, module.over_block(states, given), 0))
    return found


def _mtp_depths(_: Trainee) -> list[int]:
    return [0]


def _mtp_drafts(trainee: Trainee, heard: Heard, steps: int, decay: float) -> list[Drafted]:
    """Return the steps of a rollout from every token: step K is about the token after the next K."""
    module = cast(MtpModule, trainee.draft("mtp"))
    last = heard.states[trainee.target.target.num_layers].float()
    length = last.shape[1]
    given = trainee.target.positional(heard.positional(module), module.source, length)
    steps = min(steps, length - 2)
    states = module.rollout(last, heard.states[0].float(), given, steps)
    return [
        Drafted(f"step_{step}", "mtp", found, step, decay ** (step - 1))
        for step, found in enumerate(states, start=1)
    ]


def _no_depths(_: Trainee) -> list[int]:
    return []


def _heads_drafts(trainee: Trainee, heard: Heard, _steps: int, decay: float) -> list[Drafted]:
    """Return what every head drafts from the last state alone: head K is about the token after the next K."""
    module = cast(HeadsModule, trainee.draft("heads"))
    last = heard.states[trainee.target.target.num_layers].float()
    return [
        Drafted(f"head_{head}", "heads", found, head, decay ** (head - 1))
        for head, found in enumerate(module.over_block(last), start=1)
    ]


FORMS = {
    "exit": Form(_exit_depths, _exit_drafts, chained=False),
    "mtp": Form(_mtp_depths, _mtp_drafts, chained=True),
    "heads": Form(_no_depths, _heads_drafts, chained=True),
}


def counted(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return row and token, each `(N,)`, of what counts in bool `(B, T-1)`."""
    row, token = mask.nonzero(as_tuple=True)
    return row, token


def gathered(drafts: Sequence[Drafted], trainee: Trainee, row: Tensor, token: Tensor) -> list[Draft]:
    """Return the drafts of the counted tokens, with the rows that each is multiplied with."""
    rows = {name: trainee.rows(name) for name in dict.fromkeys(draft.module for draft in drafts)}
    return [draft.at(row, token, rows[draft.module]) for draft in drafts]


@torch.no_grad()
def chain(matches: Tensor, row: Tensor, token: Tensor, gamma: int, *, chained: bool) -> tuple[Tensor, Tensor]:
    """Return the summed accept length of all rounds of `gamma` drafts, and how many rounds there are.

    `matches` bool `(steps, N)`: of a rollout, step k of a round that starts at token a is about token a + k; of an
    exit there is one row, and every token is drafted from true states. A round never leaves a stretch of counted
    tokens. The accept length is 1 + Σ_k Π_{i≤k} match_i (the text is given, not decoded: a simulation).
    """
    count = matches.shape[1] - gamma + 1
    if count <= 0:
        return matches.new_zeros((), dtype=torch.float32), matches.new_zeros((), dtype=torch.float32)
    rounds = torch.stack([matches[step if chained else 0, step : step + count] for step in range(gamma)])
    ends = slice(gamma - 1, gamma - 1 + count)
    whole = (row[:count] == row[ends]) & (token[ends] - token[:count] == gamma - 1)
    if chained:
        whole &= token[:count] >= 1
    length = 1 + rounds.float().cumprod(0).sum(0)
    return (length * whole).sum(), whole.float().sum()

"""Resolve a draft's `auto`: watch stepwise decoding, see how far drafts would have predicted it, weigh that by v(r)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from torch import nn

from ssd_infer.engine.sampling import SamplingParams
from ssd_infer.families.diffusion.block_loop import decode
from ssd_infer.families.diffusion.decoding import block_width, lay_out, memory_for, start
from ssd_infer.families.diffusion.denoiser import Denoiser
from ssd_infer.families.diffusion.draft import Source, Standing, StateDrafter
from ssd_infer.families.diffusion.reader import Reader
from ssd_infer.families.diffusion.settings import SamplerSettings
from ssd_infer.families.diffusion.state import Canvas, State
from ssd_infer.families.diffusion.step import STEP, Choice, Reading, Stepper
from ssd_infer.strategies.diffusion_strategy import Call, Draft
from ssd_infer.strategies.fewer_steps.call_costs import CallCosts, measure_calls
from ssd_infer.strategies.fewer_steps.resolved_draft import made
from ssd_infer.strategies.fewer_steps.spiffy import Path, most_travelled
from ssd_infer.strategies.fewer_steps.ssd_tree import SSDTree
from ssd_infer.tuning.memo import Memo

PROMPTS, TOKENS = 8, 64
MOST_STATES = 16
AUTOMATIC = ("ssd_chain", "ssd_tree", "spiffy")
"""Drafters that `drafter=auto` chooses from; ties go to the first."""
WORTH = 1.02
"""A draft predicted to gain less than this is not made."""


@dataclass(slots=True)
class Profile:
    """What stepwise decoding of a few prompts showed."""

    paths: list[tuple[Path, int]] = field(default_factory=list)
    """For every state met: the choices that lead from its upcoming state on, and the steps left in the block."""
    costs: CallCosts = field(default_factory=lambda: CallCosts((1,), (1.0,)))

    def acceptance(self, gamma: int) -> list[float]:
        """Return the conditional acceptance of a chain by depth, over all states met."""
        found = []
        for depth in range(1, gamma + 1):
            reached = [
                path for path, left in self.paths if left >= depth and _chain_length(path) >= depth - 1
            ]
            hits = sum(_chain_length(path) >= depth for path in reached)
            found.append(hits / len(reached) if reached else 0.0)
        return found

    def speedup(self, graph: Iterable[Path], gamma: int) -> float:
        """Return the predicted speedup of checking the paths of `graph`, replayed over what was met."""
        known = set(graph)
        gain = cost = 0.0
        place = 0
        while place < len(self.paths):
            path, left = self.paths[place]
            moves = next((end for end in range(len(path), 0, -1) if path[:end] in known), 0)
            cost += self.costs.v(1 + min(gamma, left))
            gain += 1 + moves
            place += 1 + moves
        return gain / cost if cost else 1.0


class Met(NamedTuple):
    """A state met by stepwise decoding, the one after it, and what its logits say of the steps ahead."""

    state: State
    upcoming: State
    ahead: list[Reading]


class Witness(StateDrafter):
    """Draft nothing, and note every state with what its logits say of the steps after it."""

    name: ClassVar[str] = "witness"

    def __init__(self) -> None:
        """Begin with an empty record."""
        super().__init__(1)
        self.met: dict[Canvas, list[Met]] = {}

    def propose(self, standings: Sequence[Standing], source: Source) -> list[list[State]]:
        """Note where each row stands and go on stepwise."""
        tables = source.ahead(MOST_STATES, seconds=True)
        for standing, table in zip(standings, tables, strict=True):
            self.met.setdefault(standing.canvas, []).append(Met(standing.state, standing.upcoming, table))
        return [[standing.upcoming] for standing in standings]


def resolve_auto(
    model: nn.Module,
    name: str,
    gamma: int | str,
    options: Mapping[str, Any],
    call: Call,
    prompts: Sequence[Sequence[int]],
) -> Draft:
    """Return the resolved draft: the γ, and for `spiffy` the graph, with the best predicted speedup on `prompts`."""
    profile = cached_profile(model, call, prompts)
    if name == "auto":
        drafts = [resolve_auto(model, one, gamma, {}, call, prompts) for one in AUTOMATIC]
        return max(drafts, key=lambda draft: draft.predicted_speedup or 0.0)
    most = min(MOST_STATES, max((left for _, left in profile.paths), default=1)) or 1
    if name == "coarse_draft":
        return made(name, most if gamma == "auto" else int(gamma), options)
    choices = range(1, most + 1) if gamma == "auto" else [int(gamma)]
    swaps = call.settings.needs_scores
    best = max(
        (
            (profile.speedup(graph_of(name, count, options, profile, swaps), count), count)
            for count in choices
        ),
        key=lambda found: (found[0], -found[1]),
    )
    speedup, count = best
    if gamma == "auto" and speedup < WORTH:
        note = f"no length of draft is predicted to gain ({speedup:.2f}× at best), so decoding stays stepwise"
        return Draft(None, {}, note, speedup)
    resolved = dict(options)
    if name == "spiffy":
        graph = graph_of(name, count, options, profile, swaps)
        resolved["graph"] = [[list(choice) for choice in path] for path in graph]
    note = f"γ = {count} of 1 to {most} is predicted best ({speedup:.2f}×)" if gamma == "auto" else ""
    return made(name, count, resolved, note, speedup)


def graph_of(name: str, gamma: int, options: Mapping[str, Any], profile: Profile, swaps: bool) -> list[Path]:
    """Return the paths a drafter of this name checks."""
    if name == "spiffy":
        return most_travelled((path for path, _ in profile.paths if path), gamma)
    if name != "ssd_tree":
        return [(STEP,) * length for length in range(1, gamma + 1)]
    found: list[Path] = [()]
    for parent, choice in SSDTree(gamma, **options).nodes(swaps):
        found.append((*found[parent], choice))
    return found[1:]


_profiles: Memo[Profile] = Memo()


def cached_profile(model: nn.Module, call: Call, prompts: Sequence[Sequence[int]]) -> Profile:
    """Return the profile of a model under the settings and the batch size of `call`, made once."""
    settings, tokens = practice(Denoiser.of(model), call)
    key = (settings, call.sampling, tokens, call.batch)
    texts = prompts[:PROMPTS]
    return _profiles.cached(
        model, key, lambda: observe(model, settings, call.sampling, texts, tokens, call.batch)
    )


def practice(denoiser: Denoiser, call: Call) -> tuple[SamplerSettings, int]:
    """Return sampler and output length to calibrate with: some tokens, which leave the prompts half the model's room.

    Blocks are those of `call` where it has any, and take as many steps as they do there.
    """
    settings = call.settings
    room = getattr(denoiser.config, "max_position_embeddings", None)
    tokens = min(TOKENS, max(1, room // 2)) if room else TOKENS
    width = block_width(denoiser, settings, tokens)
    if not denoiser.block_causal:
        tokens = max(width, tokens - tokens % width)
    if settings.steps is None or settings.rule != "schedule":
        return settings, tokens
    real = block_width(denoiser, settings, call.max_new_tokens)
    share = settings.steps // -(-call.max_new_tokens // real) / real
    steps = max(1, round(share * width)) * -(-tokens // width)
    return dataclasses.replace(settings, steps=steps), tokens


def observe(
    model: nn.Module,
    settings: SamplerSettings,
    sampling: SamplingParams,
    prompts: Sequence[Sequence[int]],
    tokens: int,
    batch: int,
) -> Profile:
    """Decode `prompts` stepwise, note what drafts would have predicted, and time calls of r states for `batch` rows."""
    denoiser = Denoiser.of(model)
    reader = Reader(denoiser, settings, sampling)
    width = block_width(denoiser, settings, tokens)
    room = getattr(model.config, "max_position_embeddings", None)
    usable = [list(prompt) for prompt in prompts if not room or len(prompt) + tokens <= room]
    usable = usable or [list(prompts[0])[-max(1, (room or 2 * tokens) - tokens) :]]
    canvases = lay_out(denoiser, settings, usable, tokens, frozenset(), 0)
    witness = Witness()
    run = start(denoiser, settings, canvases, reader, witness)
    decode(run)
    profile = Profile()
    for canvas, met in witness.met.items():
        profile.paths += travelled(canvas, met, run.stepper)
    most = min(MOST_STATES, width)
    counts = sorted({1, 2, 3, 4, most // 2 + 1, most, most + 1} - {0})
    rows = [canvases[row % len(canvases)] for row in range(batch)]
    profile.costs = measure_calls(memory_for(denoiser, settings, rows), counts)
    return profile


def travelled(canvas: Canvas, met: Sequence[Met], stepper: Stepper) -> list[tuple[Path, int]]:
    """Return for every state met the choices its own logits predict after the upcoming state, and the steps left."""
    found = []
    for index, here in enumerate(met):
        path: list[Choice] = []
        left = 0
        for later in met[index + 1 :]:
            if later.state.start != here.state.start:
                break
            depth = later.state.revealed - here.state.revealed
            choice = _choice(canvas, later, here.ahead[depth], stepper) if len(path) == left else None
            left += 1
            if choice is not None:
                path.append(choice)
        found.append((tuple(path), left))
    return found


_CHOICES: tuple[Choice, ...] = (STEP, (1, 0), (0, 1), (2, 0), (1, 1))


def _choice(canvas: Canvas, met: Met, reading: Reading, stepper: Stepper) -> Choice | None:
    """Return the choice that makes of a state met what STEP made of it, judged by an earlier `reading`; or None."""
    return next(
        (choice for choice in _CHOICES if stepper.step(canvas, met.state, reading, choice) == met.upcoming),
        None,
    )


def _chain_length(path: Path) -> int:
    """Return how many steps of `path` a chain predicts."""
    return next((index for index, choice in enumerate(path) if choice != STEP), len(path))

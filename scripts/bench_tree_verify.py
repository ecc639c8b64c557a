#!/usr/bin/env python3
"""Measure whether verifying a tree of drafts would pay on a checkpoint and this machine.

    python scripts/bench_tree_verify.py CHECKPOINT [prompts=6] [prompt_tokens=64] [repeats=15]

The tree is SWIFT's caterpillar: the drafted chain, and beside each of its tokens the k-1 next likeliest, which cost
no draft forward. They help where the chain's first wrong token has the right one among its siblings. Three things are
measured: what a pass over w tokens costs as a chain and with a tree's mask and positions, what moving the accepted
keys together costs, and how often the right token is a sibling at the first rejection. Greedy decoding follows the
target's own text exactly; the answer is the predicted speedup of the best chain and of the best tree.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import ssd_infer
from ssd_infer.cli.console import print_error
from ssd_infer.corpus import build_tasks, calibration_prompts
from ssd_infer.engine.sampling import Sampler, SamplingParams
from ssd_infer.engine.session import Session, open_session
from ssd_infer.engine.sublayers import SkipSet, skip_view
from ssd_infer.engine.target import Target
from ssd_infer.engine.window import Geometry, Reach, Rotary, Window
from ssd_infer.errors import SSDError
from ssd_infer.evaluation.progress import quiet_libraries
from ssd_infer.strategies.skip_layers.dp import search_dp
from ssd_infer.tuning.calibration_text import CalibrationSet, write_calibration_set
from ssd_infer.tuning.costs import non_decreasing, quiet_seconds, timed
from ssd_infer.tuning.scratch import ScratchCache
from ssd_infer.tuning.sublayer_costs import SublayerCosts, measure_sublayers

WIDTHS = (1, 2, 3, 5, 7, 9, 13, 17, 25, 33)
GAMMAS = range(1, 13)
WIDEST = 4
"""Most tokens considered a depth, the chain's own included."""


class TreeWindow(Window):
    """Consecutive slots whose positions are depths of a tree; a token sees the committed slots and its ancestors."""

    __slots__ = ("_ancestors",)

    def __init__(self, geometry: Geometry, start: int, depths: Tensor, ancestors: Tensor) -> None:
        """Open slots from `start` for tokens at `depths` `(T,)`, open to `ancestors` `(T, T)`, own token included."""
        super().__init__(geometry, [start], len(depths))
        self.position_ids = (start + depths).unsqueeze(0)
        self._ancestors = ancestors

    def rotary(self, kind: str | None = None) -> Rotary:
        """Return rotary cosines and sines at the depths."""
        if kind not in self._rotary:
            cos, sin = self.geometry.rotary(Window(self.geometry, [0], self.end), kind)
            self._rotary[kind] = cos[0, self.position_ids], sin[0, self.position_ids]
        return self._rotary[kind]

    def mask(self, reach: Reach) -> Tensor | None:
        """Return an additive mask `(1, 1, T, end)`; layers with a sliding window are not told apart."""
        if reach not in self._masks:
            start = self.end - self.width
            seen = torch.ones(self.width, start, dtype=torch.bool, device=self.geometry.device)
            self._masks[reach] = self.geometry.additive(~torch.cat([seen, self._ancestors], dim=1))[
                None, None
            ]
        return self._masks[reach]


def caterpillar(gamma: int, siblings: int) -> tuple[Tensor, Tensor]:
    """Return depths `(T,)` and ancestors `(T, T)` of the pending token, γ drafts and their `siblings` each."""
    depths = [0, *range(1, gamma + 1), *(d for d in range(1, gamma + 1) for _ in range(siblings))]
    size = len(depths)
    ancestors = torch.eye(size, dtype=torch.bool)
    for index, depth in enumerate(depths):
        reach = depth if index > gamma else depth + 1
        ancestors[index, :reach] = True
    return torch.tensor(depths), ancestors


@dataclass(frozen=True, slots=True)
class Passes:
    """Seconds of passes over `WIDTHS` tokens, and of moving accepted keys together in every layer."""

    chain: tuple[float, ...]
    tree: tuple[float, ...]
    move: float

    def at(self, width: float, tree: bool) -> float:
        """Return the seconds of a pass over `width` tokens."""
        return float(np.interp(width, WIDTHS, self.tree if tree else self.chain))


@torch.inference_mode()
def measure_passes(target: Target, context: int, repeats: int) -> Passes:
    """Time chain passes, tree passes and key moves, interleaved."""
    sampler = Sampler(SamplingParams(), target.device, seed=0)
    session = open_session(target, [[0] * context], 1, max(WIDTHS), sampler)
    session.lengths = [context]
    chain: dict[int, list[float]] = {width: [] for width in WIDTHS}
    tree: dict[int, list[float]] = {width: [] for width in WIDTHS}
    moves: list[float] = []
    for repeat in range(repeats + 1):
        for width in WIDTHS:
            gamma = max(1, (width - 1) // 2)
            depths, ancestors = caterpillar(gamma, 1) if width > 2 else caterpillar(width - 1, 0)
            spent = timed(partial(run, session, session.window(width)), target.device)
            window = TreeWindow(session.geometry, context, depths, ancestors)
            spent_tree = timed(partial(run, session, window), target.device)
            if repeat:
                chain[width].append(spent)
                tree[width].append(spent_tree)
        took = timed(partial(move_keys, session, context), target.device)
        if repeat:
            moves.append(took)
    levelled = [non_decreasing([quiet_seconds(part[width]) for width in WIDTHS]) for part in (chain, tree)]
    return Passes(tuple(levelled[0]), tuple(levelled[1]), quiet_seconds(moves))


def run(session: Session, window: Window) -> None:
    """Run the whole model over a window and choose a token at every position."""
    ids = torch.zeros((1, window.width), dtype=torch.long, device=session.target.device)
    hidden = session.target.embed_at(ids, window, session.cache)
    hidden = session.target.run(hidden, window, session.cache)
    session.target.logits(hidden).argmax(dim=-1)


def move_keys(session: Session, context: int) -> None:
    """Copy one accepted sibling's keys and values to the slot they belong in, in every layer."""
    for layer in range(session.target.num_layers):
        stored = session.cache.stored(layer, context + max(WIDTHS))
        if stored is not None:
            for part in stored:
                part[:, :, context + 1] = part[:, :, context + 2]


@torch.inference_mode()
def ranks(material: CalibrationSet, skips: SkipSet) -> Tensor:
    """Return the rank of the target's token in the draft's logits at every position `(B, T)`; 0 is its first choice."""
    target = material.target

    cache = ScratchCache(material.session.cache)
    window = material.window()
    start = target.embed_at(material.ids, window, cache)
    hidden = target.run(start, window, cache, layers=skip_view(target, skips))
    logits = target.logits(hidden)
    wanted = logits.gather(-1, material.reference.unsqueeze(-1))
    return (logits > wanted).sum(dim=-1)


def follow(found: Tensor, gamma: int, width: int) -> tuple[float, float, int, int]:
    """Follow greedy rounds along every row; return accepted and drafted tokens a round, rejections and hits.

    A hit is a first rejection whose right token is among the `width - 1` siblings: it is accepted as well.
    """
    rounds = accepted = drafted = rejections = hits = 0
    for row in found.tolist():
        at = 0
        while at < len(row):
            limit = min(gamma, len(row) - at)
            run_ = next((k for k in range(limit) if row[at + k]), limit)
            rejected = run_ < limit
            hit = rejected and row[at + run_] < width
            rounds, drafted = rounds + 1, drafted + limit
            rejections, hits = rejections + rejected, hits + hit
            accepted += run_ + hit
            at += run_ + hit + 1
    return accepted / max(1, rounds), drafted / max(1, rounds), rejections, hits


@dataclass(frozen=True, slots=True)
class Best:
    """The fastest γ of one tree width."""

    width: int
    gamma: int
    accepted: float
    nodes: float
    verify: float
    hit_rate: float
    speedup: float


def best_of(found: Tensor, skips: SkipSet, costs: SublayerCosts, passes: Passes, width: int) -> Best:
    """Return the fastest γ with `width` tokens a depth; width 1 is the chain."""
    options = []
    plain, c = passes.at(1, tree=False), costs.ratio(skips)
    for gamma in GAMMAS:
        accepted, drafted, rejections, hits = follow(found, gamma, width)
        nodes = 1 + drafted * width
        verify = passes.at(nodes, tree=width > 1) + (passes.move if width > 1 else 0.0)
        speedup = (1 + accepted) / (drafted * c + verify / plain)
        rate = hits / rejections if rejections else 0.0
        options.append(Best(width, gamma, accepted, nodes, verify / plain, rate, speedup))
    return max(options, key=lambda option: option.speedup)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or arguments[0].startswith("-"):
        print(__doc__)
        return 0 if arguments[:1] == ["--help"] else 2
    options = {"prompts": "6", "prompt_tokens": "64", "repeats": "15", "seed": "0"}
    given = dict(argument.partition("=")[::2] for argument in arguments[1:])
    if set(given) - set(options):
        print(
            f"{', '.join(set(given) - set(options))}: no setting of this command; it takes {', '.join(options)}"
        )
        return 2
    values = {key: int(text) for key, text in (options | given).items()}
    try:
        with quiet_libraries():
            measure(arguments[0], **values)
    except SSDError as error:
        print_error(error)
        return 2
    return 0


def measure(checkpoint: str, prompts: int, prompt_tokens: int, repeats: int, seed: int) -> None:
    """Measure one checkpoint and print the tables."""
    loaded = ssd_infer.load(checkpoint)
    target = Target.of(loaded.model)
    tasks = build_tasks(["auto"], loaded.tokenizer, prompts, prompt_tokens, seed)
    shown = calibration_prompts(tasks, loaded.tokenizer, prompts, prompt_tokens)
    material = write_calibration_set(target, shown, SamplingParams(), count=len(shown))
    costs = measure_sublayers(target, prompt_tokens + 24)
    skips = search_dp(material, costs).skips
    if not len(skips):  # nothing gains: ask what a tree would do for a draft that is half the model
        middle = range(1, target.num_layers - 1, 2)
        skips = SkipSet.of(middle, middle)
    passes = measure_passes(target, prompt_tokens + 24, repeats)
    show_passes(passes)
    found = ranks(material, skips)
    show_best(
        checkpoint, skips, costs, [best_of(found, skips, costs, passes, w) for w in range(1, WIDEST + 1)]
    )


def show_passes(passes: Passes) -> None:
    """Print what passes cost, in plain steps."""
    table = Table(title="Cost of a pass in plain steps")
    for title in ("tokens", "chain", "tree", "tree ÷ chain"):
        table.add_column(title, justify="right")
    plain = passes.chain[0]
    for width, chain, tree in zip(WIDTHS, passes.chain, passes.tree, strict=True):
        table.add_row(str(width), f"{chain / plain:.3f}", f"{tree / plain:.3f}", f"{tree / chain:.3f}")
    Console(highlight=False).print(table)
    Console(highlight=False).print(
        f"moving one accepted sibling's keys: {passes.move / plain:.3f} plain steps"
    )


def show_best(checkpoint: str, skips: SkipSet, costs: SublayerCosts, found: list[Best]) -> None:
    """Print the best chain and the best trees."""
    table = Table(
        title=f"{checkpoint}: {len(skips.attention)} attention and {len(skips.mlp)} MLP sublayers skipped, "
        f"c {costs.ratio(skips):.3f}"
    )
    for title in (
        "tokens a depth",
        "γ",
        "nodes",
        "accepted",
        "hit rate",
        "verify",
        "predicted",
        "against chain",
    ):
        table.add_column(title, justify="right")
    for best in found:
        table.add_row(
            "1 (chain)" if best.width == 1 else str(best.width),
            str(best.gamma),
            f"{best.nodes:.1f}",
            f"{best.accepted:.2f}",
            f"{best.hit_rate:.2f}",
            f"{best.verify:.2f}",
            f"{best.speedup:.3f}",
            f"{best.speedup / found[0].speedup:.3f}",
        )
    Console(highlight=False).print(table)


if __name__ == "__main__":
    sys.exit(main())

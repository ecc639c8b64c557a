#!/usr/bin/env python3
"""Measure what a rejection costs models that remember by recurrence, in plain steps; docs/families.md shows the table.

    python scripts/bench_rollback.py [--rounds 60] [--gamma 4] [--width 512] [--layers 8]

A key that a draft left behind is overwritten; a state that has seen a rejected token goes back to the committed one,
which runs over the accepted tokens again, through its mixer alone. That happens when the next round begins. So in one
decoding a round that follows a rejection takes turns with one that does not and with a plain step, at the same context;
their difference is the price. A Llama of the same size, which goes back for nothing, shows the noise. Times are those
of the processor on one thread, which other programs disturb less than the clock's.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from transformers import AutoModelForCausalLM

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from ssd_infer.engine.kernels.plain import grouped_layers  # noqa: E402  the repository's own, wherever this is started
from ssd_infer.engine.sampling import Sampler, SamplingParams  # noqa: E402
from ssd_infer.engine.session import Session, open_session  # noqa: E402
from ssd_infer.engine.target import Target  # noqa: E402
from tests.engine.causal_families import tiny_config  # noqa: E402

PROMPT, WARM, VOCAB = 64, 6, 8192
_LINEAR = {"linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 4}
_KINDS: dict[str, list[str]] = {
    "lfm2": ["conv", "conv", "full_attention", "conv"],
    "qwen3_5_text": ["linear_attention"] * 3 + ["full_attention"],
}
"""Layers in the order in which published models of these families repeat them."""
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("llama", {}),
    "LFM2": ("lfm2", {}),
    "Qwen3.5 text": ("qwen3_5_text", {**_LINEAR, "linear_num_value_heads": 8}),
    "Mamba 2": ("mamba2", {"head_dim": 64, "state_size": 128, "chunk_size": 256}),
}


@dataclass(slots=True)
class Prices:
    """Processor seconds of one model's rounds, one entry a turn."""

    plain: list[float] = field(default_factory=list)
    free: list[float] = field(default_factory=list)
    """Rounds of γ + 1 tokens after one in which all were accepted."""
    after: dict[int, list[float]] = field(default_factory=dict)
    """The same after one in which so many were accepted and the others rejected."""

    def row(self, title: str) -> str:
        """Return medians in plain steps, and the middle half of the pairs, as a line of Markdown."""
        step = median(self.plain)
        cells = [f"{1e3 * step:.2f} ms", f"{median(self.free) / step:.2f}"]
        for late in self.after.values():
            low, middle, high = quantiles(
                [(more - free) / step for more, free in zip(late, self.free, strict=True)], n=4
            )
            cells.append(f"{middle:+.2f} ({low:+.2f} to {high:+.2f})")
        return f"| {title} | {' | '.join(cells)} |"


def model_of(name: str, width: int, layers: int) -> Any:
    """Build a random model of a family: `width` wide, `layers` deep, a vocabulary that does not outweigh them."""
    model_type, changes = MODELS[name]
    sizes: dict[str, Any] = {"vocab_size": VOCAB, "hidden_size": width, "num_hidden_layers": layers}
    sizes |= {"max_position_embeddings": 4096, "initializer_range": 0.02}
    if model_type == "mamba2":
        sizes["num_heads"] = 2 * width // 64
    else:
        sizes |= {"intermediate_size": 3 * width, "num_attention_heads": width // 64, "head_dim": 64}
    if model_type in _KINDS:
        kinds = _KINDS[model_type]
        sizes["layer_types"] = [kinds[layer % len(kinds)] for layer in range(layers)]
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(tiny_config(model_type, **sizes | changes)).eval().float()


def opened(target: Target, most: int) -> Session:
    """Open a session whose prompt was run."""
    sampler = Sampler(SamplingParams(), target.device, seed=0)
    session = open_session(target, [[5] * PROMPT], most, 0, sampler)
    session.layers = grouped_layers(session)
    one_round(session, PROMPT, PROMPT)
    return session


def one_round(session: Session, tokens: int, taken: int) -> float:
    """Run a pass of `tokens` tokens of which `taken` are committed; return its seconds."""
    ids = torch.full((1, tokens), 5)
    start = time.process_time()
    session.begin_round()
    window = session.window(tokens)
    hidden = session.run(session.target.embed_at(ids, window, session.cache), window)
    session.target.logits(hidden).argmax(-1).tolist()
    spent = time.process_time() - start
    session.lengths = [length + taken for length in session.lengths]
    return spent


@torch.inference_mode()
def measure(name: str, rounds: int, gamma: int, width: int, layers: int) -> Prices:
    """Return the prices of one model: a plain step, a round after none was rejected, and after some were, in turns."""
    target = Target.of(model_of(name, width, layers))
    kept = sorted({0, gamma // 2, gamma - 1})
    prices = Prices(after={accepted: [] for accepted in kept})
    session = opened(target, (rounds + WARM) * (2 + (len(kept) + 1) * (gamma + 1)))
    for turn in range(rounds + WARM):
        plain = one_round(session, 1, 1)
        free = one_round(session, gamma + 1, kept[0] + 1)  # of which the tokens after these are rejected
        late = [one_round(session, gamma + 1, following + 1) for following in [*kept[1:], gamma]]
        if turn >= WARM:
            prices.plain.append(plain)
            prices.free.append(free)
            for accepted, spent in zip(kept, late, strict=True):
                prices.after[accepted].append(spent)
    return prices


def main() -> None:
    """Measure every model and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=60, help="turns that count")
    parser.add_argument("--gamma", type=int, default=4, help="drafted tokens of a round")
    parser.add_argument("--width", type=int, default=512, help="hidden size, a multiple of 128")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--only", choices=list(MODELS), nargs="+", default=list(MODELS))
    given = parser.parse_args()
    torch.set_num_threads(1)
    for number, name in enumerate(given.only):
        prices = measure(name, given.rounds, given.gamma, given.width, given.layers)
        if not number:
            after = [f"after {accepted} of {given.gamma} accepted" for accepted in prices.after]
            heads = ["family", "plain step", f"verifying {given.gamma} drafts", *after]
            print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}", flush=True)
        print(prices.row(name), flush=True)


if __name__ == "__main__":
    main()

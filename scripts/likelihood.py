"""Compare how likely checkpoints find the same held-out text: bits per character, diffusion beside autoregressive.

    python scripts/likelihood.py CHECKPOINT [CHECKPOINT ...] [--passages 32] [--characters 256] [--samples 64]

A diffusion model gets a bound (its estimator is named) and, if trained in blocks, the exact left-to-right figure.
Bits per character compare checkpoints with different tokenizers, perplexities per token do not; ± is the error of
sampling masks, not of choosing the passages, which are the same for all.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from typing import Any

import torch

from ssd_infer import load
from ssd_infer.checkpoint.load import Loaded
from ssd_infer.cli.console import print_error
from ssd_infer.corpus import stdlib as stdlib_corpus
from ssd_infer.corpus.marks import own_marks
from ssd_infer.errors import CheckpointError, ConfigError, Problem, SSDError
from ssd_infer.families.diffusion.likelihood import BATCH, Likelihood, measure


def passages(count: int, characters: int) -> list[str]:
    """Return the beginnings of held-out documents, prose and code in turn."""
    kinds = [stdlib_corpus.documents("validation", kind) for kind in ("prose", "code")]
    long = [[item.text for item in items if len(item.text) >= characters] for items in kinds]
    mixed = [text for pair in zip(*long, strict=False) for text in pair]
    if len(mixed) < count:
        rule = f"must be at most {len(mixed)}, the held-out documents of {characters} characters"
        raise ConfigError([Problem("--passages", rule, count, "take fewer, or fewer --characters")])
    return [text[:characters] for text in mixed[:count]]


def sequences(loaded: Loaded, texts: list[str]) -> list[torch.Tensor]:
    """Return each text's ids after what begins a document: the tokenizer's own mark, else the end token before it.

    Raises CheckpointError where a figure would not compare: without an end token, where ids do not hold the whole
    text, and where they are more than the model has positions.
    """
    tokenizer = loaded.tokenizer
    if loaded.kind == "speech" or getattr(tokenizer, "eos_token_id", None) is None:
        raise CheckpointError(
            f"checkpoint: {loaded.path!r} has no language model and tokenizer with an end token"
        )
    encoded = tokenizer(texts, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    for text, ids in zip(texts, encoded, strict=True):
        if "".join(tokenizer.decode(ids).split()) != "".join(text.split()):
            raise CheckpointError(f"checkpoint: the tokenizer of {loaded.path!r} loses part of the text")
    room = getattr(loaded.model.config, "max_position_embeddings", None)
    longest = 1 + max(map(len, encoded))
    if room and longest > room:
        raise CheckpointError(
            f"checkpoint: {loaded.path!r} has {room} positions, and a passage takes {longest}; take fewer --characters"
        )
    begin = (own_marks(tokenizer)[0] or [tokenizer.eos_token_id])[-1]
    return [torch.tensor([begin, *ids]) for ids in encoded]


@torch.no_grad()
def autoregressive(model: Any, rows: list[torch.Tensor], characters: int) -> Likelihood:
    """Return the exact likelihood of a causal model."""
    nats, tokens = 0.0, 0
    for ids in rows:
        logp = model(ids[None]).logits[0, :-1].double().log_softmax(-1)
        nats -= float(logp.gather(1, ids[1:, None]).sum())
        tokens += len(ids) - 1
    return Likelihood("autoregressive", nats, 0.0, tokens, characters)


def figures(loaded: Loaded, texts: list[str], samples: int) -> Iterator[Likelihood]:
    """Yield every likelihood a checkpoint has."""
    rows, characters, model = sequences(loaded, texts), sum(map(len, texts)), loaded.model
    if loaded.kind != "diffusion":
        yield autoregressive(model, rows, characters)
        return
    yield measure(model, rows, given=1, characters=characters, samples=samples)
    if getattr(model.config, "block_causal", False):
        yield measure(model, rows, given=1, characters=characters, estimator="left_to_right")


def main() -> None:
    """Print one row a figure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoints", nargs="+")
    parser.add_argument("--passages", type=int, default=32)
    parser.add_argument("--characters", type=int, default=256)
    parser.add_argument("--samples", type=int, default=64)
    options = parser.parse_args()
    for name, least in (("passages", 1), ("characters", 1), ("samples", 2 * BATCH)):
        if getattr(options, name) < least:
            parser.error(f"--{name} must be at least {least} (got {getattr(options, name)})")
    try:
        table(options)
    except SSDError as error:
        print_error(error)
        sys.exit(2)


def table(options: argparse.Namespace) -> None:
    """Print the table; raises SSDError for a checkpoint that cannot be compared."""
    texts = passages(options.passages, options.characters)
    print("| checkpoint | estimator | bits/char | ± | ppl/token | tokens |\n|---|---|---|---|---|---|")
    for where in options.checkpoints:
        for found in figures(load(where, dtype="float32", device="cpu"), texts, options.samples):
            assert found.bits_per_character is not None
            error = found.standard_error / found.characters / math.log(2)
            sign = "≤ " if found.bound else ""
            print(
                f"| {where} | {found.estimator} | {sign}{found.bits_per_character:.3f} | {error:.3f} "
                f"| {found.perplexity:.1f} | {found.tokens} |",
                flush=True,
            )


if __name__ == "__main__":
    main()

"""Quality of a diffusion checkpoint: its likelihood bound on held-out text, and what it thinks of its own outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ssd_infer.corpus import held_out_ids
from ssd_infer.evaluation.bench import EvalContext, vocab_size
from ssd_infer.evaluation.vocabulary import check_ids
from ssd_infer.families.diffusion import likelihood

TOKENS, WINDOW = 1024, 128
SAMPLES = 64
GENERATED = 8
"""Outputs whose perplexity under the checkpoint itself is computed."""


def quality(bench: EvalContext) -> dict[str, Any]:
    """Return the report's `quality`: the bound that suits the model, and the exact left-to-right likelihood.

    Nothing is bounded where no held-out text is as long as one block.
    """
    source, windows = held_out_ids(bench.tasks, bench.tokenizer, TOKENS, WINDOW)
    check_ids(source, windows, vocab_size(bench.model))
    usable = [ids for ids in (whole_blocks(bench.model, window) for window in windows) if ids]
    if not usable:
        return {"exits": [], "reason": "no held-out text is as long as one block"}
    characters = sum(len(bench.tokenizer.decode(ids)) for ids in usable) if bench.tokenizer else 0
    tensors = [torch.tensor(ids, device=bench.device) for ids in usable]
    bound = likelihood.measure(bench.model, tensors, characters=characters, samples=SAMPLES)
    found: dict[str, Any] = {
        "source": source,
        "tokens": bound.tokens,
        "loss": bound.nats / bound.tokens,
        "perplexity": bound.perplexity,
        "exits": [],
        "reason": _sentence(bound, source),
        "extra": {"likelihood": [bound.as_dict()]},
    }
    if bench.model.config.block_causal:
        exact = likelihood.measure(bench.model, tensors, characters=characters, estimator="left_to_right")
        found["extra"]["likelihood"].append(exact.as_dict())
        found["reason"] += (
            f"; exact when revealed from left to right: {exact.bits_per_token:.3f} bits per token"
        )
    return found


def _sentence(found: likelihood.Likelihood, source: str) -> str:
    """Say the bound, its estimator and its error in one sentence."""
    error = found.as_dict()["bits_per_token_se"]
    characters = found.bits_per_character
    by_character = "" if characters is None else f", {characters:.3f} bits per character"
    return (
        f"NELBO of {found.tokens} held-out tokens ({source}): {found.bits_per_token:.3f} ± {error:.3f} bits per token"
        f"{by_character}, perplexity at most {found.perplexity:.1f} ({found.estimator}, {found.samples} samples)"
    )


def generative_perplexity(model: Any, texts: Sequence[tuple[list[int], list[int]]]) -> dict[str, Any] | None:
    """Return the bound of outputs given their prompts, `(prompt, output)`, under the checkpoint itself.

    It falls when text repeats itself, so a row prints the entropy of its outputs beside it.
    """
    total, tokens = 0.0, 0
    config = model.config
    size = config.block_size if config.block_causal else 0
    denoiser = likelihood.denoiser_of(model)
    for index, (prompt, output) in enumerate(texts[:GENERATED]):
        ids = whole_blocks(model, prompt + output)
        scored = torch.arange(len(ids)) >= len(prompt)
        if not bool(scored.any()):
            continue
        nats, _ = likelihood.bound_of_sequence(
            denoiser,
            torch.tensor(ids, device=next(model.parameters()).device),
            config.mask_token_id,
            block_size=size,
            scored=scored,
            samples=16,
            seed=index,
        )
        total += nats
        tokens += int(scored.sum())
    if not tokens:
        return None
    return {
        "perplexity_bound": float(torch.tensor(total / tokens).exp()),
        "tokens": tokens,
        "under": "itself",
    }


def whole_blocks(model: Any, ids: list[int]) -> list[int]:
    """Return `ids` without the last block where that is incomplete; all of them for a model without blocks."""
    size = int(model.config.block_size) if model.config.block_causal else 1
    return ids[: len(ids) - len(ids) % size]

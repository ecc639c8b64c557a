"""Decode a checked request with a causal model: the one path below `generate` and `hf_generate`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import nn

from ssd_infer.engine.loop import decode
from ssd_infer.engine.model_view import evaluating
from ssd_infer.engine.request import Request, check_vocabulary
from ssd_infer.engine.room import check_room
from ssd_infer.engine.rules import Rules, Warpers
from ssd_infer.engine.sampling import Sampler
from ssd_infer.engine.stats import Stats
from ssd_infer.engine.streaming import Stream
from ssd_infer.engine.target import Target
from ssd_infer.strategies.base import Resolved, Strategy


@dataclass(slots=True)
class GenerateOutput:
    """What a `generate` call produced."""

    sequences: list[list[int]]
    """New token ids, one list a row; EOS included when produced, nothing after it."""
    stats: Stats
    draft: str | None = None
    """The strategy that really ran; None for plain decoding, also when a strategy fell back to it."""
    draft_params: dict[str, Any] = field(default_factory=dict)
    """Its parameters with every `auto` resolved."""
    note: str = ""
    """Why a strategy fell back to plain decoding, or how `auto` was resolved; and what to know of the text's length."""


@dataclass(slots=True)
class Finished:
    """New tokens of each row, statistics, and the strategy that really ran, with its parameters."""

    sequences: list[list[int]]
    stats: Stats
    strategy: type[Strategy] | None
    resolved: Resolved


def run(
    model: nn.Module,
    request: Request,
    strategy: type[Strategy] | None,
    stream: Stream,
) -> Finished:
    """Resolve the draft's parameters and decode, the model in evaluation mode; it is left as it was.

    Raises ConfigError for ids outside the vocabulary, parameters that do not fit the model and texts that no memory
    holds, DraftError for proposals of a wrong form, UnsupportedModelError
    for architectures that cannot be split by layers, NoTokenError where scores or rules leave no token to draw.
    """
    target = Target.of(model)
    check_vocabulary(request.prompts, target.vocab_size)
    lengths = [len(prompt) for prompt in request.prompts]
    target.check_fit(lengths, request.max_new_tokens)
    check_room(target, len(lengths), max(lengths), request.max_new_tokens)
    with evaluating(model):
        resolved = Resolved(None)
        if strategy is not None:
            wanted = request.draft_params, request.prompts, request.sampling.do_sample
            resolved = strategy.prepare(target, *wanted)
        if resolved.params is None:
            strategy = None
        rules, warpers = _bound(request, target)
        sequences, stats = decode(
            target,
            request.prompts,
            strategy,
            resolved.params,
            request.max_new_tokens,
            Sampler(request.sampling, target.device, request.seed, warpers),
            request.stop,
            stream.emitter(request.prompts),
            rules,
        )
    return Finished(sequences, stats, strategy, resolved)


def _bound(request: Request, target: Target) -> tuple[Rules | None, Warpers | None]:
    """Return the rules of this decoding, and those of sampling."""
    source = request.rules
    if source is None:
        return None, None
    rules = source.bind(
        request.prompts, request.max_new_tokens, request.stop.eos, target.vocab_size, target.device
    )
    return rules, source.warpers(target.device) if request.sampling.do_sample else None

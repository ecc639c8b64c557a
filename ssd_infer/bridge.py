"""Translate what transformers' `generate` prepared into a decoding of ours, and the result back."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ssd_infer.engine.generation_rules import read_prepared_rules
from ssd_infer.engine.loop import decode
from ssd_infer.engine.request import read_draft, read_seed, unpad
from ssd_infer.engine.sampling import Sampler, SamplingParams
from ssd_infer.engine.stopping import StopRule
from ssd_infer.engine.streaming import Stream, streaming
from ssd_infer.engine.target import Target
from ssd_infer.engine.values import shown
from ssd_infer.errors import ConfigError, Problem
from ssd_infer.strategies.base import Strategy

_WARPERS = {
    "TemperatureLogitsWarper": "temperature",
    "TopKLogitsWarper": "top_k",
    "TopPLogitsWarper": "top_p",
}
_CRITERIA = {"MaxLengthCriteria", "EosTokenCriteria"}


@dataclass(frozen=True, slots=True)
class Withheld:
    """What transformers' `generate` was given and keeps to itself when it calls a function of ours."""

    streamer: Any = None
    assistant_model: Any = None


def withheld() -> Withheld:
    """Return what the `generate` that is calling us withholds: a streamer nobody ends is waited for without end.

    It has no way to hand them over, so they are read where they lie, in its frame.
    """
    from transformers import GenerationMixin

    code = inspect.unwrap(GenerationMixin.generate).__code__
    frame, far = inspect.currentframe(), 0
    while frame is not None and far < 8:
        if frame.f_code is code:
            found = frame.f_locals
            return Withheld(found.get("streamer"), found.get("assistant_model"))
        frame, far = frame.f_back, far + 1
    return Withheld()


@contextmanager
def following(token_streamer: Any) -> Iterator[Stream]:
    """Hold the streamer of a call from `generate`, by either of its names, and end it when the call ends."""
    theirs = withheld().streamer
    if theirs is None:
        with streaming(token_streamer) as stream:
            yield stream
        return
    with streaming(theirs) as stream:
        stream.primed = True  # generate has put the prompt already
        if token_streamer is not None:
            with streaming(token_streamer):
                rule = "must be given once"
                remedy = "leave it out: streamer follows the decoding"
                raise ConfigError([Problem("token_streamer", rule, shown(token_streamer), remedy)])
        yield stream


def self_speculate(
    model: nn.Module,
    input_ids: Tensor,
    attention_mask: Tensor | None,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    strategy: type[Strategy],
    draft_params: Mapping[str, Any] | None,
    seed: int | None,
    stream: Stream,
) -> Any:
    """Return `(B, T + new)` ids as `generate` does, rows that ended early padded on the right."""
    problems: list[Problem] = []
    seed, settings = read_seed(seed, problems), read_draft(strategy.info.name, draft_params, problems)[1]
    problems += stream.problems(int(input_ids.shape[0]), "token_streamer")
    read_prepared_rules(generation_config, problems)
    if problems:
        raise ConfigError(problems)
    sampling = _sampling(logits_processor or [], bool(generation_config.do_sample))
    _refuse(stopping_criteria or [], generation_config)
    target = Target.of(model)
    prompts = unpad(input_ids, attention_mask)
    resolved = strategy.settle(target, settings, prompts, sampling.do_sample)
    limit = int(generation_config.max_length) - int(input_ids.shape[1])
    eos = getattr(generation_config, "eos_token_id", None)
    stop = StopRule.of(eos, None)
    sampler = Sampler(sampling, target.device, seed)
    emit = stream.emitter(prompts)
    outputs, _ = decode(target, prompts, strategy, resolved.params, limit, sampler, stop, emit)
    sequences = _padded(input_ids, outputs, _pad_token(generation_config))
    if getattr(generation_config, "return_dict_in_generate", False):
        from transformers.generation.utils import GenerateDecoderOnlyOutput

        return GenerateDecoderOnlyOutput(sequences=sequences)  # type: ignore[arg-type]
    return sequences


def _sampling(processors: Iterable[Any], do_sample: bool) -> SamplingParams:
    """Read the warpers `generate` prepared; ConfigError for any other processor."""
    values: dict[str, Any] = {}
    problems = []
    for processor in processors:
        name = type(processor).__name__
        if name in _WARPERS:
            values[_WARPERS[name]] = getattr(processor, _WARPERS[name])
        else:
            problems.append(
                Problem(
                    "logits_processor",
                    "must be temperature, top-k or top-p only",
                    name,
                    "drop the option or use plain generate",
                )
            )
    if problems:
        raise ConfigError(problems)
    return SamplingParams(do_sample=do_sample, **values)


def _refuse(criteria: Iterable[Any], config: Any) -> None:
    problems = [
        Problem(
            "stopping_criteria",
            "must be length or EOS only",
            type(item).__name__,
            "pass stop_sequences to ssd_infer.generate",
        )
        for item in criteria
        if type(item).__name__ not in _CRITERIA
    ]
    if (config.num_beams or 1) > 1:
        problems.append(
            Problem(
                "num_beams", "must be 1", config.num_beams, "self-speculation verifies one continuation a row"
            )
        )
    if (config.num_return_sequences or 1) > 1 and not config.do_sample:
        problems.append(
            Problem("num_return_sequences", "must be 1 for greedy decoding", config.num_return_sequences)
        )
    if problems:
        raise ConfigError(problems)


def _pad_token(config: Any) -> int:
    pad = config.pad_token_id
    eos = config.eos_token_id
    if pad is None:
        pad = eos[0] if isinstance(eos, (list, tuple)) else eos
    return 0 if pad is None else int(pad)


def _padded(input_ids: Tensor, outputs: list[list[int]], pad: int) -> Tensor:
    width = max(map(len, outputs))
    table = [row + [pad] * (width - len(row)) for row in outputs]
    return torch.cat([input_ids, torch.tensor(table, dtype=input_ids.dtype, device=input_ids.device)], dim=1)

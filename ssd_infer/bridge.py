"""Translate what transformers' `generate` prepared into a request of ours, and the result back."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from ssd_infer.engine.generation_rules import read_prepared_rules, read_rules
from ssd_infer.engine.given_processors import of_a_rule, read_processors
from ssd_infer.engine.request import Request, read_draft, read_prompts, read_seed
from ssd_infer.engine.rules import RuleSource
from ssd_infer.engine.sampling import SamplingParams
from ssd_infer.engine.stopping import StopRule
from ssd_infer.engine.streaming import Stream, streaming
from ssd_infer.engine.values import shown
from ssd_infer.errors import ConfigError, Problem
from ssd_infer.strategies.base import Strategy
from ssd_infer.strategies.run import run

_OUTPUTS = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
_DRAFTS = ("prompt_lookup_num_tokens", "assistant_early_exit", "use_mtp")
_HANDLED = {"attention_mask", "position_ids", "cache", "past_key_values", "inputs_embeds", *_OUTPUTS}
_HARMLESS = {"use_cache", "logits_to_keep", "num_logits_to_keep"}
"""What says how the model's own forward is called, and changes no token."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What transformers' `generate` hands to the function that decodes for it."""

    input_ids: Tensor
    processors: Any
    criteria: Any
    config: Any
    model_kwargs: dict[str, Any]


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
    call: Prepared,
    strategy: type[Strategy] | None,
    draft_params: Any,
    seed: Any,
    stream: Stream,
) -> Any:
    """Return `(B, T + new)` ids as `generate` does, rows that ended early padded on the right.

    Raises ConfigError naming every option of the call that cannot be honoured.
    """
    problems: list[Problem] = []
    request = _request(call, strategy, draft_params, seed, problems)
    problems += stream.problems(int(call.input_ids.shape[0]), "token_streamer")
    _refuse_options(call, problems)
    _refuse_model_inputs(call, request.prompts, problems)
    if problems:
        raise ConfigError(problems)
    outputs = run(model, request, strategy, stream).sequences
    sequences = _padded(call.input_ids, outputs, _pad_token(call.config))
    if getattr(call.config, "return_dict_in_generate", False):
        from transformers.generation.utils import GenerateDecoderOnlyOutput

        return GenerateDecoderOnlyOutput(sequences=sequences)  # type: ignore[arg-type]
    return sequences


def _request(
    call: Prepared, strategy: type[Strategy] | None, draft_params: Any, seed: Any, problems: list[Problem]
) -> Request:
    """Return what the prepared call asks for; what cannot be read is added to `problems`."""
    limit, eos = _ends(call, problems)
    stop = StopRule.read(eos, None, problems)
    sampling, rules = _choosing(call, stop, problems)
    return Request(
        read_prompts(call.input_ids, call.model_kwargs.get("attention_mask"), problems),
        limit - int(call.input_ids.shape[-1]),
        sampling,
        stop,
        read_seed(seed, problems),
        *read_draft(None if strategy is None else strategy.info.name, draft_params, problems),
        rules,
    )


def _choosing(
    call: Prepared, stop: StopRule, problems: list[Problem]
) -> tuple[SamplingParams, RuleSource | None]:
    """Return how tokens are drawn and by which rules: as `generate` prepared it, or else as the config has it."""
    config, drawn = call.config, bool(call.config.do_sample)
    if call.processors is not None:
        read_prepared_rules(config, problems)
        given = read_processors(call.processors, call.input_ids, config, problems)
        return given.sampling(drawn, problems), given
    heat, most, mass = (getattr(config, name, None) for name in ("temperature", "top_k", "top_p"))
    holder = SimpleNamespace(generation_config=config)
    rules = read_rules(holder, "model", {}, drawn, bool(stop.eos), problems)
    return SamplingParams.read(drawn, heat, most, mass, problems), rules


def _ends(call: Prepared, problems: list[Problem]) -> tuple[int, Any]:
    """Return the longest row, prompt included, and the ids that end one, as the stopping criteria have them."""
    from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria

    if not call.criteria:
        return int(call.config.max_length), getattr(call.config, "eos_token_id", None)
    limits, ends = [], []
    for item in call.criteria:
        if type(item) is MaxLengthCriteria:
            limits.append(int(item.max_length))
        elif type(item) is EosTokenCriteria:
            ends += torch.as_tensor(item.eos_token_id).reshape(-1).tolist()
        elif not of_a_rule(item, call.config):
            remedy = "pass stop_sequences to ssd_infer.generate, or leave out custom_generate"
            rule = "must be length or EOS only"
            problems.append(Problem("stopping_criteria", rule, type(item).__name__, remedy))
    return min(limits, default=int(call.config.max_length)), ends


def _refuse_options(call: Prepared, problems: list[Problem]) -> None:
    """Note what the call asks to be returned or decoded by, and would not get."""
    for name in _OUTPUTS:
        wanted = getattr(call.config, name, None) or call.model_kwargs.get(name)
        if wanted:
            rule = "cannot be returned by self-speculation, which verifies several tokens in one pass"
            problems.append(Problem(name, rule, shown(wanted), "leave it out, or leave out custom_generate"))
    for name in _DRAFTS:
        value = getattr(call.config, name, None)
        if value:
            rule = "is another way to draft"
            problems.append(Problem(name, rule, shown(value), f"pass {name}=None: the draft here is draft=…"))
    assistant = withheld().assistant_model
    if assistant is not None:
        rule = "is another way to draft"
        value = type(assistant).__name__
        problems.append(Problem("assistant_model", rule, value, "leave it out: the model drafts for itself"))


def _refuse_model_inputs(call: Prepared, prompts: list[list[int]], problems: list[Problem]) -> None:
    """Note inputs of the model that self-speculation would not hand on."""
    given = {name: value for name, value in call.model_kwargs.items() if value is not None}
    if "inputs_embeds" in given:
        rule, remedy = "cannot stand for the prompt: drafts read token ids", "pass input_ids only"
        problems.append(Problem("inputs_embeds", rule, shown(given["inputs_embeds"]), remedy))
    for name in ("cache", "past_key_values"):
        if name in given and _is_the_callers(given[name]):
            rule = "would not be read or extended: self-speculation keeps keys and values of its own"
            remedy = "leave it out and pass the whole text as input_ids"
            problems.append(Problem("past_key_values", rule, type(given[name]).__name__, remedy))
    if "position_ids" in given and not _usual_positions(given["position_ids"], call, prompts):
        rule = "must count the real tokens of a row from 0"
        problems.append(Problem("position_ids", rule, shown(given["position_ids"]), "leave it out"))
    for name in sorted(given.keys() - _HANDLED - _HARMLESS):
        rule = "is an input of the model that self-speculation does not pass on"
        problems.append(Problem(name, rule, shown(given[name]), "leave it out, or leave out custom_generate"))


def _is_the_callers(cache: Any) -> bool:
    """Tell a cache the caller passed from the empty one that `generate` makes for every call."""
    parts = getattr(cache, "layers", None)
    filled = any(map(_is_filled, [cache] if parts is None else parts))
    return bool(getattr(cache, "_is_user_defined", False) or filled)


def _is_filled(part: Any) -> bool:
    """Tell whether a cache, or what it keeps of one layer, has seen a token; layers without keys count none."""
    held, seen = getattr(part, "get_seq_length", None), getattr(part, "has_previous_state", False)
    states = any(seen.values()) if isinstance(seen, dict) else seen is True
    return states or (held is not None and held() > 0) or not (held or hasattr(part, "has_previous_state"))


def _usual_positions(positions: Any, call: Prepared, prompts: list[list[int]]) -> bool:
    """Tell whether real tokens stand at the positions 0, 1, 2… that every row gets here."""
    ids, mask = call.input_ids, call.model_kwargs.get("attention_mask")
    if not isinstance(positions, Tensor) or positions.dim() != 2 or positions.shape[-1] != ids.shape[-1]:
        return False
    found = positions.expand(ids.shape[0], -1).tolist() if positions.shape[0] in (1, ids.shape[0]) else []
    real = torch.ones_like(ids) if mask is None else torch.as_tensor(mask)
    rows = zip(found, real.tolist(), strict=False)
    kept = [[place for place, one in zip(row, there, strict=False) if one] for row, there in rows]
    return kept == [list(range(len(prompt))) for prompt in prompts]


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

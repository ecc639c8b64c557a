"""The Python interface: `load` a checkpoint, `generate` with any draft strategy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from ssd_infer import drafts
from ssd_infer.drafts.base import DraftParams, Resolved
from ssd_infer.engine.bridge import emitter, unpad
from ssd_infer.engine.loop import decode
from ssd_infer.engine.sampling import Sampler, SamplingParams
from ssd_infer.engine.stats import Stats
from ssd_infer.engine.stopping import StopRule
from ssd_infer.engine.target import Target
from ssd_infer.errors import ConfigError, Problem
from ssd_infer.loading import Loaded, load
from ssd_infer.sparse.plain import grouped_layers

__all__ = ["GenerateOutput", "Loaded", "generate", "load"]

Prompts = Tensor | Sequence[Tensor] | Sequence[Sequence[int]]


@dataclass(slots=True)
class GenerateOutput:
    """What a `generate` call produced."""

    sequences: list[list[int]]
    """New token ids, one list a row; EOS included when produced, nothing after it."""
    stats: Stats
    draft: str | None = None
    """The strategy that really ran; None for plain decoding, also when a strategy fell back to it."""
    draft_params: dict[str, Any] = field(default_factory=dict)
    """Its parameters with every `auto` settled."""
    note: str = ""
    """Why a strategy fell back to plain decoding, or how `auto` was settled."""


def generate(
    model: nn.Module | Loaded,
    input_ids: Prompts,
    attention_mask: Tensor | None = None,
    *,
    draft: str | None = None,
    draft_params: Mapping[str, Any] | None = None,
    max_new_tokens: int,
    do_sample: bool = False,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    eos_token_id: int | Sequence[int] | Tensor | None = None,
    stop_sequences: Sequence[Sequence[int]] | None = None,
    seed: int | None = None,
    streamer: Any | None = None,
) -> GenerateOutput:
    """Decode `input_ids` with the model drafting for itself; the output is that of plain decoding.

    `input_ids`: a left-padded `(B, T)` tensor with its `attention_mask`, or a list of rows of different lengths.
    `draft=None` is plain decoding. `eos_token_id=None` takes the model's own. `streamer` is called with
    `(row, new_tokens)` for every accepted block, or is a transformers streamer (one row only).

    Raises ConfigError for bad arguments and UnsupportedModelError for architectures the engine cannot split by layers.
    """
    module = model.model if isinstance(model, Loaded) else model
    prompts = _rows(input_ids, attention_mask)
    sampling = SamplingParams(do_sample, temperature, top_k, top_p)
    _check(prompts, max_new_tokens, draft, draft_params, sampling)
    target = Target.of(module)
    _check_vocabulary(prompts, target)
    strategy = None if draft is None else drafts.get(draft)
    resolved = (
        Resolved(None) if strategy is None else strategy.settle(target, draft_params, prompts, do_sample)
    )
    if resolved.params is None:
        strategy = None
    stop = StopRule.of(_eos(module, eos_token_id), stop_sequences)
    was_training = module.training
    module.eval()
    try:
        sampler = Sampler(sampling, target.device, seed)
        emit = emitter(streamer, prompts)
        sequences, stats = decode(
            target, prompts, strategy, resolved.params, max_new_tokens, sampler, stop, emit, grouped_layers
        )
    finally:
        module.train(was_training)
    if streamer is not None and hasattr(streamer, "end"):
        streamer.end()
    settled = {} if resolved.params is None else _as_dict(resolved.params)
    return GenerateOutput(
        sequences, stats, None if strategy is None else strategy.name, settled, resolved.note
    )


def _rows(input_ids: Any, attention_mask: Tensor | None) -> list[list[int]]:
    """Return each prompt as a list of ids, its padding removed; raises ConfigError for anything that is no ids."""
    if isinstance(input_ids, Tensor):
        return _table(input_ids, attention_mask)
    if attention_mask is not None:
        rule = "goes with a tensor of input_ids; a list of rows has no padding to mask"
        raise ConfigError([Problem("attention_mask", rule, type(attention_mask).__name__, "leave it out")])
    if isinstance(input_ids, str) or not isinstance(input_ids, Sequence):
        rule = "must be a tensor of ids or a list of rows"
        raise ConfigError([Problem("input_ids", rule, type(input_ids).__name__, "pass its input_ids")])
    rows: list[Any] = [input_ids] if input_ids and isinstance(input_ids[0], int) else list(input_ids)
    found = [row.reshape(-1).tolist() if isinstance(row, Tensor) else row for row in rows]
    for index, row in enumerate(found):
        if not isinstance(row, Sequence) or not all(isinstance(token, int) for token in row):
            rule = "must be a row of integer token ids"
            raise ConfigError([Problem(f"input_ids[{index}]", rule, str(row)[:60])])
    return [list(row) for row in found]


def _table(input_ids: Tensor, attention_mask: Tensor | None) -> list[list[int]]:
    """Return the rows of a `(B, T)` or `(T,)` tensor without the positions its mask leaves out."""
    table = input_ids.unsqueeze(0) if input_ids.dim() == 1 else input_ids
    mask = attention_mask
    mask = mask.unsqueeze(0) if mask is not None and mask.dim() == 1 else mask
    if table.dim() != 2 or table.is_floating_point():
        rule = "must be integers of shape (B, T) or (T,)"
        raise ConfigError([Problem("input_ids", rule, f"{input_ids.dtype} {tuple(input_ids.shape)}")])
    if mask is not None and mask.shape != table.shape:
        rule = f"must have the shape of input_ids, {tuple(table.shape)}"
        raise ConfigError([Problem("attention_mask", rule, tuple(mask.shape))])
    return unpad(table, mask)


def _check(
    prompts: list[list[int]],
    max_new_tokens: Any,
    draft: str | None,
    params: Mapping[str, Any] | None,
    sampling: SamplingParams,
) -> None:
    problems = sampling.problems()
    if not prompts:
        problems.append(Problem("input_ids", "must hold at least one row", "no rows"))
    problems += [
        Problem(f"input_ids[{i}]", "must hold at least one token", "empty")
        for i, row in enumerate(prompts)
        if not row
    ]
    if not isinstance(max_new_tokens, int) or max_new_tokens < 1:
        problems.append(Problem("max_new_tokens", "must be an integer >= 1", max_new_tokens))
    if draft is None and params:
        problems.append(Problem("draft_params", "need a draft", dict(params), "name one with draft=…"))
    if problems:
        raise ConfigError(problems)


def _check_vocabulary(prompts: list[list[int]], target: Target) -> None:
    size = target.vocab_size
    for index, row in enumerate(prompts):
        worst = max(row) if min(row) >= 0 else min(row)
        if not 0 <= worst < size:
            rule = f"must hold token ids below the model's vocabulary of {size}"
            raise ConfigError(
                [Problem(f"input_ids[{index}]", rule, worst, "use the tokenizer saved with the checkpoint")]
            )


def _eos(model: nn.Module, given: Any) -> Any:
    if given is not None:
        return given
    config: Any = getattr(model, "generation_config", None) or model.config
    return getattr(config, "eos_token_id", None)


def _as_dict(params: DraftParams) -> dict[str, Any]:
    return {name: getattr(params, name) for name in type(params).__dataclass_fields__}

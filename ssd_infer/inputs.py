"""Prompts as `generate` takes them: every accepted form becomes a list of rows of token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from ssd_infer.engine.bridge import unpad
from ssd_infer.engine.sampling import SamplingParams
from ssd_infer.errors import ConfigError, Problem

Prompts = Tensor | Sequence[Tensor] | Sequence[Sequence[int]]


def prompt_rows(input_ids: Any, attention_mask: Tensor | None) -> list[list[int]]:
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


def call_problems(
    prompts: Sequence[Sequence[int]],
    max_new_tokens: Any,
    draft: str | None,
    draft_params: Mapping[str, Any] | None,
    sampling: SamplingParams,
) -> list[Problem]:
    """Return what is wrong with the arguments that every kind of model shares."""
    problems = [*sampling.problems(), *prompt_problems(prompts)]
    if not isinstance(max_new_tokens, int) or max_new_tokens < 1:
        problems.append(Problem("max_new_tokens", "must be an integer >= 1", max_new_tokens))
    if draft is None and draft_params:
        problems.append(Problem("draft_params", "need a draft", dict(draft_params), "name one with draft=…"))
    return problems


def prompt_problems(prompts: Sequence[Sequence[int]]) -> list[Problem]:
    """Return a problem for every empty prompt, and for having none."""
    problems = [] if prompts else [Problem("input_ids", "must hold at least one row", "no rows")]
    return problems + [
        Problem(f"input_ids[{i}]", "must hold at least one token", "empty")
        for i, row in enumerate(prompts)
        if not row
    ]


def check_vocabulary(prompts: Sequence[Sequence[int]], size: int) -> None:
    """Raise ConfigError when a prompt holds an id outside a vocabulary of `size`."""
    for index, row in enumerate(prompts):
        worst = max(row) if min(row) >= 0 else min(row)
        if not 0 <= worst < size:
            rule = f"must hold token ids below the model's vocabulary of {size}"
            raise ConfigError(
                [Problem(f"input_ids[{index}]", rule, worst, "use the tokenizer saved with the checkpoint")]
            )


def eos_of(model: Any, given: Any) -> Any:
    """Return `given`, or else the end-of-text ids of the model's own generation config."""
    if given is not None:
        return given
    config: Any = getattr(model, "generation_config", None) or model.config
    return getattr(config, "eos_token_id", None)

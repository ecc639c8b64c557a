"""One call of `generate`, checked: every entry point reads its arguments here, so they mean the same everywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ssd_infer.engine.generation_rules import read_rules, refuse_rules
from ssd_infer.engine.rules import RuleSource
from ssd_infer.engine.sampling import SamplingParams
from ssd_infer.engine.stopping import StopRule
from ssd_infer.engine.values import shown, unboxed, whole
from ssd_infer.errors import ConfigError, Problem

SEEDS = 2**63
"""Seeds lie below this."""


@dataclass(frozen=True, slots=True)
class Request:
    """What to decode and how, every value of its type and in its range."""

    prompts: list[list[int]]
    max_new_tokens: int
    sampling: SamplingParams
    stop: StopRule
    seed: int | None = None
    draft: str | None = None
    draft_params: dict[str, Any] = field(default_factory=dict)
    rules: RuleSource | None = None
    """What changes scores before a token is chosen; None where nothing does."""


def read_request(
    model: Any,
    problems: list[Problem],
    *,
    input_ids: Any,
    attention_mask: Any,
    max_new_tokens: Any,
    do_sample: Any,
    temperature: Any,
    top_k: Any,
    top_p: Any,
    eos_token_id: Any,
    stop_sequences: Any,
    seed: Any,
    draft: Any,
    draft_params: Any,
    generation_rules: Any = "model",
    rules: Mapping[str, Any] | None = None,
    follows_rules: bool = True,
) -> Request:
    """Return the request these arguments make; everything that is wrong with them is added to `problems`.

    None means off, or for `eos_token_id` and `seed` what the model says and a new seed. `rules` are those the call
    names; where decoding follows none (`follows_rules=False`), every rule in force is a problem.
    """
    prompts = read_prompts(input_ids, attention_mask, problems)
    length = whole(max_new_tokens)
    if length is None or length < 1:
        remedy = "it counts new tokens, the prompt's not included"
        problems.append(Problem("max_new_tokens", "must be an integer >= 1", shown(max_new_tokens), remedy))
    sampling = SamplingParams.read(do_sample, temperature, top_k, top_p, problems)
    stop = read_stop(model, eos_token_id, stop_sequences, problems)
    found, given, drawn = None, rules or {}, sampling.do_sample
    if follows_rules:
        found = read_rules(model, generation_rules, given, drawn, bool(stop.eos), problems)
    else:
        refuse_rules(model, generation_rules, given, drawn, problems)
    return Request(
        prompts,
        length or 1,
        sampling,
        stop,
        read_seed(seed, problems),
        *read_draft(draft, draft_params, problems),
        found,
    )


def read_stop(model: Any, eos: Any, sequences: Any, problems: list[Problem]) -> StopRule:
    """Return when rows end; without `eos` by the end-of-text ids of the model's own generation config."""
    if eos is not None:
        return StopRule.read(eos, sequences, problems)
    config = getattr(model, "generation_config", None) or getattr(model, "config", None)
    own = getattr(config, "eos_token_id", None)
    return StopRule.read(own, sequences, problems, f"{_config_name(model)}.eos_token_id")


def _config_name(model: Any) -> str:
    return "config" if getattr(model, "generation_config", None) is None else "generation_config"


def read_seed(seed: Any, problems: list[Problem]) -> int | None:
    """Return the seed; None stands for a new one."""
    found = None if seed is None else whole(seed)
    if seed is not None and (found is None or not 0 <= found < SEEDS):
        rule = "must be an integer from 0 to 2**63 - 1, or None for a new one"
        problems.append(Problem("seed", rule, shown(seed), "try 0"))
        return None
    return found


def read_draft(draft: Any, params: Any, problems: list[Problem]) -> tuple[str | None, dict[str, Any]]:
    """Return the name of the draft, None for plain decoding, and its parameters."""
    if draft is not None and not isinstance(draft, str):
        rule = "must be the name of a draft, or None for plain decoding"
        problems.append(Problem("draft", rule, shown(draft), "give its name as text"))
    named = params is None or (isinstance(params, Mapping) and all(isinstance(key, str) for key in params))
    if not named:
        rule = "must map names to values"
        problems.append(Problem("draft_params", rule, shown(params), "try {'gamma': 3}"))
        params = None
    if draft is None and params is not None and len(params) > 0:
        problems.append(Problem("draft_params", "need a draft", dict(params), "name one with draft=…"))
    plain = {key: unboxed(value) for key, value in dict(params or {}).items()}
    return draft if isinstance(draft, str) else None, plain


def read_prompts(input_ids: Any, attention_mask: Any, problems: list[Problem]) -> list[list[int]]:
    """Return each prompt as a list of ids, its padding removed; what is no ids is added to `problems`."""
    known = len(problems)
    if _is_array(input_ids):
        rows = _rows_of_table(input_ids, attention_mask, problems)
    else:
        rows = _listed(input_ids, problems)
        if attention_mask is not None:
            rule = "goes with a tensor of input_ids; a list of rows has no padding to mask"
            problems.append(Problem("attention_mask", rule, shown(attention_mask), "leave it out"))
    if len(problems) == known:
        problems += prompt_problems(rows)
    return rows


def prompt_problems(prompts: Sequence[Sequence[int]]) -> list[Problem]:
    """Return a problem for every empty prompt, and for having none."""
    problems = [] if prompts else [Problem("input_ids", "must hold at least one row", "no rows")]
    return problems + [
        Problem(f"input_ids[{i}]", "must hold at least one token", "empty")
        for i, row in enumerate(prompts)
        if not row
    ]


def check_vocabulary(prompts: Sequence[Sequence[int]], size: int) -> None:
    """Raise ConfigError naming every prompt that holds an id outside a vocabulary of `size`."""
    rule, remedy = (
        f"must hold token ids below the model's vocabulary of {size}",
        "use the checkpoint's tokenizer",
    )
    worst = [max(row) if min(row) >= 0 else min(row) for row in prompts]
    problems = [
        Problem(f"input_ids[{index}]", rule, shown(token), remedy)
        for index, token in enumerate(worst)
        if not 0 <= token < size
    ]
    if problems:
        raise ConfigError(problems)


def unpad(input_ids: Tensor, attention_mask: Tensor | None) -> list[list[int]]:
    """Return each row `(B, T)` as a list of ids without the positions its mask leaves out."""
    if attention_mask is None:
        return [list(row) for row in input_ids.tolist()]
    pairs = zip(input_ids.tolist(), attention_mask.tolist(), strict=True)
    return [[token for token, real in zip(row, mask, strict=True) if real] for row, mask in pairs]


def _is_array(value: Any) -> bool:
    """Tell whether `value` is a tensor, or an array of numpy or alike."""
    return isinstance(value, Tensor) or (hasattr(value, "__array__") and hasattr(value, "dtype"))


def _tensor(value: Any) -> Tensor | None:
    """Return `value` as a tensor where it can be one that holds numbers, which those on the meta device do not."""
    try:
        table = value if isinstance(value, Tensor) else torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None
    return None if table.is_meta else table


def _are_ids(table: Tensor) -> bool:
    return not (table.is_floating_point() or table.is_complex() or table.dtype == torch.bool)


def _rows_of_table(input_ids: Any, attention_mask: Any, problems: list[Problem]) -> list[list[int]]:
    """Return the rows of a `(B, T)` or `(T,)` tensor without the positions its mask leaves out."""
    table = _tensor(input_ids)
    if table is None or table.dim() not in (1, 2) or not _are_ids(table):
        rule = "must be integers of shape (B, T) or (T,)"
        problems.append(Problem("input_ids", rule, shown(input_ids), "pass the tokenizer's input_ids"))
        return []
    table = table.unsqueeze(0) if table.dim() == 1 else table
    return unpad(table, _mask(attention_mask, table, problems))


def _mask(given: Any, table: Tensor, problems: list[Problem]) -> Tensor | None:
    """Return a mask of the shape of `table`; lists are read as tensors are."""
    if given is None:
        return None
    mask = _tensor(given)
    mask = mask.unsqueeze(0) if mask is not None and mask.dim() == 1 else mask
    shape = tuple(table.shape)
    if mask is None or mask.shape != table.shape:
        rule = f"must be zeros and ones of the shape of input_ids, {shape}"
        value = shown(given) if mask is None else tuple(mask.shape)
        problems.append(Problem("attention_mask", rule, value, "pass the tokenizer's attention_mask"))
        return None
    if not bool(((mask == 0) | (mask == 1)).all()):
        rule = "must hold zeros and ones only, 1 where a token is real"
        problems.append(Problem("attention_mask", rule, shown(given), "pass the tokenizer's attention_mask"))
        return None
    return mask


def _listed(input_ids: Any, problems: list[Problem]) -> list[list[int]]:
    """Return the rows of a list of rows, or the one row of a list of ids."""
    if isinstance(input_ids, str | bytes) or not isinstance(input_ids, Sequence):
        rule = "must be a tensor of ids or a list of rows"
        problems.append(Problem("input_ids", rule, shown(input_ids), "pass the tokenizer's input_ids"))
        return []
    flat = bool(input_ids) and whole(input_ids[0]) is not None
    rows = [_row(row) for row in ([input_ids] if flat else input_ids)]
    for index, row in enumerate(rows):
        if row is None:
            rule = "must be a row of integer token ids"
            value = shown(input_ids if flat else input_ids[index])
            problems.append(Problem(f"input_ids[{index}]", rule, value, "pass the tokenizer's input_ids"))
    return [row for row in rows if row is not None]


def _row(row: Any) -> list[int] | None:
    """Return one row of ids, or None where it is none; a tensor may be `(T,)` or `(1, T)`."""
    if _is_array(row):
        table = _tensor(row)
        if (
            table is None
            or not _are_ids(table)
            or table.dim() not in (1, 2)
            or table.numel() != table.shape[-1]
        ):
            return None
        return [int(token) for token in table.reshape(-1).tolist()]
    if isinstance(row, str | bytes) or not isinstance(row, Sequence):
        return None
    if all(type(token) is int for token in row):
        return list(row)
    ids = [whole(token) for token in row]
    return None if None in ids else [token for token in ids if token is not None]

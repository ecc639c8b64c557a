"""Which settings two starts must share to be the same run, and what to say when they do not."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Any

from ssd_infer.errors import ConfigError, Problem
from ssd_train.config.schema import Root

logger = logging.getLogger(__name__)

_FREE = (
    *("run_name", "output_root", "resume", "dry_run", "print_config", "device", "threads"),
    *("eval.", "tracking.", "engine.", "data.cache_dir", "data.validation_blocks"),
    *("train.save_steps", "train.logging_steps", "train.eval_steps", "train.eval_batches", "train.keep_last"),
    *("train.num_workers", "train.activation_checkpointing"),
    *("recipe.chunk_tokens", "recipe.early_exit.chunk_tokens"),
)
"""Prefixes of keys that may differ: where things go, what is measured, and how memory is spent."""
_EXTENDABLE = "train.max_steps"
_EARLIER = {"data.add_bos": False, "data.control_tokens": "parse"}
"""What runs did that know nothing of these keys."""


def identity(cfg: Root) -> dict[str, Any]:
    """Return the settings that change what is learned, by dotted key."""
    flat = dict(_flatten(dataclasses.asdict(cfg), ""))
    return {key: value for key, value in flat.items() if not key.startswith(_FREE)}


def check_same_run(cfg: Root, saved: Mapping[str, Any]) -> None:
    """Raise ConfigError naming every setting in which `cfg` differs from the checkpoint it would continue.

    A longer `train.max_steps` is allowed: schedules stretch from here on, which is said aloud.
    """
    current = identity(cfg)
    saved = {**{key: value for key, value in _EARLIER.items() if key in current}, **saved}
    problems = []
    for key in sorted({*current, *saved}):
        now, then = current.get(key), saved.get(key)
        if now == then:
            continue
        if key == _EXTENDABLE:
            logger.warning("train.max_steps was %s and is now %s: schedules stretch from here on", then, now)
            continue
        if _belongs_to_another_kind(key, current, saved):
            continue
        rule = f"differs from the run's checkpoint, which has {then!r}"
        problems.append(
            Problem(key, rule, now, f"{_remedy(key, then)}choose another run_name, or resume=never")
        )
    if problems:
        raise ConfigError(problems)


def check_same_contents(cfg: Root, now: Mapping[str, str], then: Mapping[str, str] | None) -> None:
    """Raise ConfigError naming every key whose files hold something else than when the checkpoint was written.

    `now` and `then` are hashes by dotted key; None for a checkpoint of a version that kept none.
    """
    if then is None:
        logger.warning("the checkpoint does not say what its data held, so the data is not compared with it")
        return
    rule = "holds other content than what the run's checkpoint was trained with"
    remedy = "put the earlier content back, choose another run_name, or resume=never"
    problems = [
        Problem(key, rule, _value(cfg, key), remedy)
        for key in sorted({*now} & {*then})
        if now[key] != then[key]
    ]
    if problems:
        raise ConfigError(problems)


def _value(cfg: Root, key: str) -> object:
    return reduce(getattr, key.split("."), cfg)


def _belongs_to_another_kind(key: str, current: Mapping[str, Any], saved: Mapping[str, Any]) -> bool:
    """Tell whether only one side has `key` because the two chose different options of its group."""
    group = f"{key.partition('.')[0]}.kind"
    return (key in current) != (key in saved) and current.get(group) != saved.get(group)


def _remedy(key: str, then: Any) -> str:
    """Return how to give `key` its earlier value; a kind is not set by itself but chosen with its group."""
    group, _, name = key.partition(".")
    if name == "kind":
        return f"choose {group} as before, "
    return f"set {key}={'null' if then is None else then}, "


def _flatten(value: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, part in value.items():
            yield from _flatten(part, f"{prefix}.{name}" if prefix else name)
    else:
        yield prefix, value

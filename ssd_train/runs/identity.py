"""Which settings two starts must share to be the same run, and what to say when they do not."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Any

from ssd_infer.errors import ConfigError, Problem
from ssd_train.config.schema import Root
from ssd_train.runs.arguments import rate_share

logger = logging.getLogger(__name__)

_FREE = (
    *("run_name", "output_root", "resume", "dry_run", "print_config", "device", "threads"),
    *("eval.", "tracking.", "engine.", "data.cache_dir", "data.validation_blocks"),
    *("train.save_steps", "train.logging_steps", "train.eval_steps", "train.eval_batches", "train.keep_last"),
    *("train.max_minutes", "train.num_workers", "train.activation_checkpointing", "train.save_dtype"),
    *("data.revision", "model.revision"),  # what they name is compared: see `check_same_contents`
    *("recipe.chunk_tokens", "recipe.early_exit.chunk_tokens", "recipe.patience"),
)
"""Prefixes of keys that may differ: where things go, what is measured, and how memory is spent."""
_EXTENDABLE = "train.max_steps"
_REVISIONS = {"data.name": "data.revision", "model.name": "model.revision"}
_EARLIER = {"data.add_bos": False, "data.control_tokens": "parse"}
"""What runs did that know nothing of these keys."""


def identity(cfg: Root) -> dict[str, Any]:
    """Return the settings that change what is learned, by dotted key."""
    flat = dict(_flatten(dataclasses.asdict(cfg), ""))
    return {key: value for key, value in flat.items() if not key.startswith(_FREE)}


def check_same_run(cfg: Root, saved: Mapping[str, Any], step: int) -> None:
    """Raise ConfigError naming every setting in which `cfg` differs from the checkpoint it would continue, of `step`.

    Another `train.max_steps` is allowed down to the steps that are done: what then jumps is said aloud.
    """
    current = identity(cfg)
    saved = {**_earlier(current), **saved}
    problems = list(_too_short(cfg, step))
    for key in sorted({*current, *saved}):
        now, then = current.get(key), saved.get(key)
        if now == then:
            continue
        if key == _EXTENDABLE:
            if not problems:
                _say_what_jumps(cfg, then, step)
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
    problems = [
        _other_content(cfg, key, then[key]) for key in sorted({*now} & {*then}) if now[key] != then[key]
    ]
    if problems:
        raise ConfigError(problems)


def _earlier(current: Mapping[str, Any]) -> dict[str, Any]:
    """Return what keys meant to runs that knew nothing of them; those of text mean nothing to speech, then and now."""
    speech = "data.sampling_rate" in current
    return {key: current[key] if speech else value for key, value in _EARLIER.items() if key in current}


def _other_content(cfg: Root, key: str, then: str) -> Problem:
    rule = "holds other content than what the run's checkpoint was trained with"
    remedy = "put the earlier content back"
    if then.startswith("commit ") and key in _REVISIONS:
        rule, remedy = f"{rule}, {then}", f"set {_REVISIONS[key]}={then.split()[1]}"
    value = reduce(getattr, key.split("."), cfg)
    return Problem(key, rule, value, f"{remedy}, choose another run_name, or resume=never")


def _too_short(cfg: Root, step: int) -> Iterator[Problem]:
    """Yield the problem of a run that has done more steps than `cfg` asks for."""
    if step > cfg.train.max_steps:
        rule = f"must be at least {step}, the steps this run has done already"
        remedy = f"set train.max_steps={step} to leave it as it is, more to go on, or choose another run_name"
        yield Problem(_EXTENDABLE, rule, cfg.train.max_steps, remedy)


def _say_what_jumps(cfg: Root, then: Any, step: int) -> None:
    """Warn that a run of another length follows another schedule, and by how much its learning rate jumps here."""
    now = cfg.train.max_steps
    if not isinstance(then, int) or step >= now:
        logger.warning("train.max_steps was %s and is now %s, where the run stands", then, now)
        return
    peaks = {"learning rate": cfg.train.learning_rate}
    if cfg.optim.name == "muon":
        peaks["learning rate of Muon"] = cfg.optim.muon_learning_rate
    before, after = (rate_share(cfg.train, steps, step) for steps in (then, now))
    rates = " and ".join(
        f"the {name} goes from {before * peak:.3g} to {after * peak:.3g}" for name, peak in peaks.items()
    )
    logger.warning(
        "train.max_steps was %d and is now %d: from step %d on the run follows the schedule of %d steps; %s, and layer "
        "dropout and curricula that follow the length of a run move likewise; what comes out is not what a run of %d "
        "steps would have given: for that choose another run_name",
        *(then, now, step, now, rates, now),
    )


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

"""The strategy `fewer_steps`: its parameters, and how `auto` is resolved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from ssd_infer.engine.sampling import SamplingParams
from ssd_infer.errors import ConfigError, Problem
from ssd_infer.families.diffusion.settings import SamplerSettings
from ssd_infer.strategies.diffusion_strategy import Call, Draft
from ssd_infer.strategies.fewer_steps.drafts import DRAFTERS
from ssd_infer.strategies.fewer_steps.freedave import FreeDave
from ssd_infer.strategies.fewer_steps.resolved_draft import made
from ssd_infer.strategies.fewer_steps.step_calibration import resolve_auto

NAME = "fewer_steps"
_OPTIONS = {
    "ssd_tree": ("width",),
    "freedave": ("draft_steps",),
    "coarse_draft": ("draft_steps",),
    "spiffy": ("graph",),
}
"""Parameters of one drafter beside γ."""


def resolve(
    model: nn.Module,
    draft: str | None,
    params: Mapping[str, Any] | None,
    settings: SamplerSettings,
    sampling: SamplingParams,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    batch: int | None = None,
) -> Draft:
    """Check `draft` and its parameters and resolve every `auto` on `prompts`; ConfigError with all problems.

    `batch` is the number of rows decoded together, None: as many as there are prompts.
    """
    if draft is None:
        return Draft()
    found = check_draft(draft, params)
    name, gamma = found.pop("drafter", "auto"), found.pop("gamma", "auto")
    if name == "freedave" and gamma == "auto":
        gamma = found.setdefault("draft_steps", FreeDave.DRAFT_STEPS) - 1
    if name not in ("auto", "spiffy") and gamma != "auto":
        return made(name, gamma, found)
    if name == "spiffy" and gamma != "auto" and "graph" in found:
        return made(name, gamma, found)
    call = Call(settings, sampling, max_new_tokens, batch or len(prompts))
    return resolve_auto(model, name, gamma, found, call, prompts)


def check_draft(draft: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what `check` returns, of a draft for diffusion models; ConfigError for any other."""
    if draft != NAME:
        rule = f"does not apply to a diffusion model, which drafts with {NAME}"
        raise ConfigError([Problem("draft", rule, draft, f"use draft={NAME!r}")])
    return check(params)


def check(params: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return `draft_params` without fields left `auto`; raises ConfigError with every violated rule."""
    if not isinstance(params or {}, Mapping):
        raise ConfigError([Problem("draft_params", "must map names to values", params, "try {'gamma': 3}")])
    given = dict(params or {})
    name = given.get("drafter", "auto")
    problems = []
    if name not in (*DRAFTERS, "auto"):
        rule = f"must be auto or one of {', '.join(DRAFTERS)}"
        raise ConfigError([Problem("draft_params.drafter", rule, name)])
    allowed = ("drafter", "gamma", *_OPTIONS.get(name, ()))
    for key, value in given.items():
        if key not in allowed:
            remedy = f"it takes {', '.join(allowed)}"
            problems.append(Problem(f"draft_params.{key}", f"is no parameter of {name}", value, remedy))
        elif key in ("gamma", "width", "draft_steps") and value != "auto" and not _counts(value, key):
            low = 1 if key == "gamma" else 2
            rule = f"must be an integer >= {low}, or auto"
            problems.append(Problem(f"draft_params.{key}", rule, value, "try 3"))
    if "graph" in given and not _is_graph(given["graph"]):
        rule = "must be a list of paths, each a list of choices [a, t] with integers a >= 0 and t of 0 or 1"
        problems.append(
            Problem("draft_params.graph", rule, given["graph"], "try [[[0, 0]], [[0, 0], [1, 0]]]")
        )
    if problems:
        raise ConfigError(problems)
    return {key: value for key, value in given.items() if value != "auto" or key in ("gamma", "drafter")}


def _counts(value: Any, key: str) -> bool:
    """Tell whether `value` is an integer that parameter `key` takes; one draft step or one branch drafts nothing."""
    low = 1 if key == "gamma" else 2
    return isinstance(value, int) and not isinstance(value, bool) and value >= low


def _is_graph(value: Any) -> bool:
    """Tell whether `value` holds paths of choices that a reading can answer; None and no paths mean a chain."""
    if value is None or value == "auto":
        return True
    return _is_list(value) and all(
        _is_list(path) and all(_is_choice(choice) for choice in path) for path in value
    )


def _is_choice(value: Any) -> bool:
    """Tell whether `value` is a pair: how many positions to skip, and the best token or the second best."""
    if not _is_list(value) or len(value) != 2 or not all(type(part) is int for part in value):
        return False
    return bool(value[0] >= 0 and value[1] in (0, 1))


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)

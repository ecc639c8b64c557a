"""What the Python entry points take besides plain values: models, and drafts by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from ssd_infer.checkpoint.adapters import adds_prompts, inner_model
from ssd_infer.checkpoint.load import Loaded
from ssd_infer.engine.request import Request
from ssd_infer.engine.values import shown
from ssd_infer.errors import ConfigError, Problem
from ssd_infer.strategies import registry as drafts
from ssd_infer.strategies.base import Strategy

Prompts = Tensor | Sequence[Tensor] | Sequence[Sequence[int]]


def module_of(model: Any, problems: list[Problem]) -> nn.Module | None:
    """Return the transformers model inside `model`, which may be PEFT's; None, and a problem, where there is none."""
    if adds_prompts(model):
        rule = "must not be a PEFT model that learns prompts: they are in none of its layers"
        problems.append(Problem("model", rule, shown(model), "pass one whose adapter is in layers"))
        return None
    module = model.model if isinstance(model, Loaded) else inner_model(model)
    if isinstance(module, nn.Module) and getattr(module, "config", None) is not None:
        return module
    rule = "must be a transformers model, or what ssd_infer.load returns"
    problems.append(Problem("model", rule, shown(model), "pass ssd_infer.load(DIR)"))
    return None


def strategy_of(request: Request, problems: list[Problem]) -> type[Strategy] | None:
    """Return the strategy a request names; problems with its name, and with parameters that need no model to judge."""
    if request.draft is None:
        return None
    try:
        strategy = drafts.get(request.draft)
        strategy.parse(request.draft_params, None)
    except ConfigError as error:
        problems += error.problems
        return None
    return strategy

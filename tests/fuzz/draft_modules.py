"""A random draft module of every form beside a tiny model: bodies and heads change with the variant."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from ssd_infer.checkpoint.draft_spec import MODULES, DraftSpec
from ssd_infer.errors import SSDError
from ssd_infer.models.draft_modules.build import FORMS, build
from ssd_infer.models.draft_modules.files import put_beside

_SIZES = {"exit_layer": 1, "rank": 4, "mlp_width": 16, "rollout": 2, "heads": 3}
"""Of fields that a form or a body needs; others are 0."""
_NOISE = 0.02


def put_modules(model: Any, variant: int) -> None:
    """Put a module of each form beside `model` that can be made of it."""
    for number, form in enumerate(FORMS):
        for body in MODULES[(variant + number) % len(MODULES) :] + MODULES:
            try:
                module = build(_spec(form, body, variant), model, _ids(model, variant))
            except SSDError:
                continue
            _disturb(module, variant)
            put_beside(model, module)
            break


def _spec(form: str, body: str, variant: int) -> DraftSpec:
    """Return a specification with those sizes that its rules ask for."""
    rows = _rows(variant)
    bare = DraftSpec(form=form, module=body, rows=rows, own_rows=variant % 5 == 2)
    wanted = {problem.key.removeprefix("draft.") for problem in bare.problems()}
    return dataclasses.replace(bare, **{name: size for name, size in _SIZES.items() if name in wanted})


def _rows(variant: int) -> int:
    """Look at some tokens in every other variant; few enough for the smallest vocabulary."""
    return 4 if variant % 2 else 0


def _ids(model: Any, variant: int) -> torch.Tensor | None:
    """Return the ids of those rows."""
    rows, vocabulary = _rows(variant), int(model.config.get_text_config().vocab_size)
    return torch.arange(rows) * (vocabulary // rows) if rows else None


@torch.no_grad()
def _disturb(module: torch.nn.Module, variant: int) -> None:
    chance = torch.Generator().manual_seed(variant)
    for weight in module.parameters():
        if weight.dim() > 1:
            weight.add_(
                _NOISE * torch.randn(weight.shape, generator=chance, dtype=torch.float32).to(weight.dtype)
            )

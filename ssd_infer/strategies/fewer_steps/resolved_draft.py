"""How a draft with nothing left to choose is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ssd_infer.strategies.diffusion_strategy import Draft
from ssd_infer.strategies.fewer_steps.drafts import DRAFTERS


def made(
    name: str, gamma: int, options: Mapping[str, Any], note: str = "", predicted: float | None = None
) -> Draft:
    """Return the draft of these parameters."""
    drafter = DRAFTERS[name](gamma, **options)
    return Draft(drafter, {"drafter": name, "gamma": drafter.gamma, **options}, note, predicted)

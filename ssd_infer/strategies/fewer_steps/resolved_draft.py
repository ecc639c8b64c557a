"""A draft with nothing left to choose, and how one is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ssd_infer.families.diffusion.draft import StateDrafter
from ssd_infer.strategies.fewer_steps.drafts import DRAFTERS


@dataclass(slots=True)
class Draft:
    """A resolved draft; `drafter=None` decodes stepwise, for the reason in `note`."""

    drafter: StateDrafter | None = None
    params: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    predicted_speedup: float | None = None


def made(
    name: str, gamma: int, options: Mapping[str, Any], note: str = "", predicted: float | None = None
) -> Draft:
    """Return the draft of these parameters."""
    drafter = DRAFTERS[name](gamma, **options)
    return Draft(drafter, {"drafter": name, "gamma": drafter.gamma, **options}, note, predicted)

"""What the strategy for masked-diffusion models answers; its room decodes these models without a draft too."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from ssd_infer.engine.sampling import SamplingParams
from ssd_infer.families.diffusion.draft import StateDrafter
from ssd_infer.families.diffusion.settings import SamplerSettings
from ssd_infer.strategies.reported import KindStrategy
from ssd_infer.strategies.run import GenerateOutput


@dataclass(slots=True)
class Draft:
    """A resolved draft; `drafter=None` decodes stepwise, for the reason in `note`."""

    drafter: StateDrafter | None = None
    params: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    predicted_speedup: float | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """What of a call the best draft depends on."""

    settings: SamplerSettings
    sampling: SamplingParams
    max_new_tokens: int
    batch: int
    """Rows decoded together."""


class DiffusionStrategy(KindStrategy):
    """A strategy that drafts states of a masked-diffusion model; all methods belong to the class."""

    @classmethod
    @abstractmethod
    def generate(cls, *arguments: Any, **named: Any) -> GenerateOutput:
        """Decode with this draft, or stepwise for `draft=None`; the arguments are those of `ssd_infer.generate`."""

    @classmethod
    @abstractmethod
    def rows(cls, draft: str, given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Return row name → draft parameters of what `draft=` asks an evaluation for; `given` goes to a single row."""

    @classmethod
    @abstractmethod
    def resolve(
        cls, model: nn.Module, params: Mapping[str, Any], call: Call, prompts: Sequence[Sequence[int]]
    ) -> Draft:
        """Return the draft with every `auto` resolved on `prompts`; ConfigError for wrong parameters."""

"""How a masked-diffusion model reveals tokens: one deterministic STEP, fixed by these fields."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, get_args

from ssd_infer.errors import ConfigError, Problem

Order = Literal["confidence", "left_to_right", "random", "margin", "entropy"]
Rule = Literal["schedule", "threshold", "ancestral"]
Caching = Literal["auto", "exact", "none", "dual"]
Layout = Literal["tree", "batch"]
NoiseType = Literal["float64", "float32"]

_CHOICES: dict[str, tuple[str, ...]] = {
    "order": get_args(Order),
    "rule": get_args(Rule),
    "cache": get_args(Caching),
    "layout": get_args(Layout),
    "noise_dtype": get_args(NoiseType),
}


@dataclasses.dataclass(frozen=True, slots=True)
class SamplerSettings:
    """Every field of the sampler; a report prints them all."""

    order: Order = "confidence"
    """Which masked position is next: by confidence (LLaDA, 2502.09992), left to right, at random (BD3-LM's first
    hitting, 2503.09573, since nothing is conditioned on time), by margin or by entropy (Dream, 2508.15487)."""
    rule: Rule = "schedule"
    """How many: `schedule` spreads `steps` evenly; `threshold` takes all above `threshold` (Fast-dLLM, 2505.22618);
    `ancestral` lets each position leave the mask with probability 1 − s/t (MDLM, 2406.07524)."""
    steps: int | None = None
    """Steps over the whole output; None reveals one token a step, the baseline of every lossless claim."""
    threshold: float = 0.9
    """θ: confidence above which `threshold` reveals; at least one token is revealed."""
    block_length: int | None = None
    """Tokens of a block; None takes the model's, or the whole output of a model that was not trained in blocks."""
    cache: Caching = "auto"
    """`exact` keeps finished blocks of block-causal models; `none` runs the canvas; `dual` keeps all but the active
    block as it was when the block began, which is approximate (Fast-dLLM, 2505.22618)."""
    layout: Layout = "tree"
    """How drafted states share a call: side by side in one row under a mask, or one row each."""
    noise_dtype: NoiseType = "float64"
    """float32 cuts Gumbel noise near 16.6, which lowers the effective temperature (2409.02908): flagged."""

    @classmethod
    def of(cls, config: Any, given: Mapping[str, Any] | SamplerSettings | None = None) -> SamplerSettings:
        """Return the settings saved with a model's `config`, overridden by `given`; ConfigError names wrong fields.

        Complete settings are taken as they are, once they have been checked.
        """
        if isinstance(given, SamplerSettings):
            given = dataclasses.asdict(given)
        if not isinstance(given, Mapping | None):
            raise ConfigError([Problem("sampler", "must map field names to values", given)])
        saved = getattr(config, "sampler", None)
        order = getattr(config, "order", None)
        values = {**({"order": order} if order else {}), **(saved or {}), **(given or {})}
        names = [field.name for field in dataclasses.fields(cls)]
        unknown = [key for key in values if key not in names]
        if unknown:
            rule = f"is no field of the sampler; it has {', '.join(names)}"
            raise ConfigError([Problem(f"sampler.{key}", rule, values[key]) for key in unknown])
        settings = cls(**values)
        problems = settings.problems()
        if problems:
            raise ConfigError(problems)
        return settings

    def problems(self) -> list[Problem]:
        """Return the violated rules."""
        found = [
            Problem(f"sampler.{key}", f"must be one of {', '.join(options)}", getattr(self, key))
            for key, options in _CHOICES.items()
            if getattr(self, key) not in options
        ]
        for key in ("steps", "block_length"):
            value = getattr(self, key)
            if value is not None and (not _is_number(value, int) or value < 1):
                found.append(Problem(f"sampler.{key}", "must be an integer >= 1, or null", value))
        if not _is_number(self.threshold, int | float) or not 0 < self.threshold < 1:
            found.append(Problem("sampler.threshold", "must lie between 0 and 1", self.threshold, "try 0.9"))
        return found

    @property
    def needs_scores(self) -> bool:
        """Tell whether the next position depends on what the model says at all of them."""
        return self.rule == "threshold" or (
            self.rule == "schedule" and self.order not in ("left_to_right", "random")
        )

    @property
    def lossy(self) -> str | None:
        """Say what makes the output differ from one-token-a-step decoding with no or an exact cache; None: nothing."""
        reasons = []
        if self.rule == "threshold":
            reasons.append(f"reveals all tokens above confidence {self.threshold:g} at once")
        if self.steps is not None:
            reasons.append(f"takes {self.steps} steps")
        if self.cache == "dual":
            reasons.append("keeps keys of a canvas that has changed since")
        return "; ".join(reasons) or None

    def described(self, cache: str, width: int) -> dict[str, Any]:
        """Return every field as JSON-ready data, with the cache and the block length really used."""
        return dataclasses.asdict(self) | {"cache": cache, "block_length": width}


def _is_number(value: Any, kind: Any) -> bool:
    """Tell whether `value` is a number of this kind; true and false are none."""
    return isinstance(value, kind) and not isinstance(value, bool)

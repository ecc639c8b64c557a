"""What every draft that reads the head is told of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from ssd_infer.engine.heads.rows import restricted_reason
from ssd_infer.engine.target import Target
from ssd_infer.errors import Problem
from ssd_infer.strategies.base import Auto, DraftParams, at_least

HeadKind = Literal["full", "static", "context", "lowrank"]


@dataclass(slots=True)
class HeadParams(DraftParams):
    """Parameters of a draft, and how many tokens it looks at."""

    head: HeadKind | Auto = field(default="auto", kw_only=True)
    """Tokens a draft looks at: all (`full`), the K this model uses most (`static`), those and what the text has used
    (`context`), or the K best of a rough look at all (`lowrank`); auto is what is predicted to be fastest."""
    head_size: int | Auto = field(default="auto", kw_only=True)
    """K; a full head has none."""

    def problems(self, target: Target | None) -> list[Problem]:
        """Check 1 <= head_size <= V, and that the head of `target` can be taken in part where it is to be."""
        found = at_least("head_size", self.head_size, 1)
        if target is None:
            return found
        size = target.vocab_size
        if isinstance(self.head_size, int) and self.head_size > size:
            rule = f"must be <= {size}, the vocabulary of this model"
            found.append(Problem("draft_params.head_size", rule, self.head_size, f"try {max(1, size // 4)}"))
        if self.head not in ("auto", "full") and (reason := restricted_reason(target)) is not None:
            rule = f"must be full with this model: {reason}"
            found.append(Problem("draft_params.head", rule, self.head, "use head=full"))
        return found

    def described(self) -> dict[str, Any]:
        """Return the parameters by name; of a head only where it is not the target's own."""
        found = DraftParams.described(self)
        return (
            found
            if self.head != "full"
            else {k: v for k, v in found.items() if k not in ("head", "head_size")}
        )

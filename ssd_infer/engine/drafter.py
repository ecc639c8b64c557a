"""What the engine asks of a draft: to propose tokens inside one session, and to learn from what verification says."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from types import MappingProxyType
from typing import Any, ClassVar

from ssd_infer.engine.session import Feedback, Proposal, Session
from ssd_infer.engine.target import Target
from ssd_infer.errors import Problem

UNSAID = MappingProxyType({"unsaid": True})
"""Of the field of a parameter that is named only where it is not its default: a way of drafting few ask for."""


@dataclasses.dataclass(slots=True)
class DraftParams:
    """Parameters of a draft; each subclass is a dataclass with slots and checks itself against the target."""

    def problems(self, target: Target | None) -> list[Problem]:
        """Return the violated rules, keyed `draft_params.<field>`; without a target those that need none."""
        del target
        return []

    def described(self) -> dict[str, Any]:
        """Return the parameters by name, as they are reported and may be given again; `unsaid` ones if they differ."""
        return {
            field.name: value
            for field in dataclasses.fields(self)
            if (value := getattr(self, field.name)) != field.default or not field.metadata.get("unsaid")
        }


class Drafter(ABC):
    """Propose tokens inside one decoding session and learn from what verification says.

    A drafter reads the session, writes cache slots past the committed lengths only, and never touches the loop.
    """

    lossless: ClassVar[bool] = True

    def __init__(self, session: Session, params: DraftParams) -> None:
        """Bind to `session`; called before the prompts are prefilled."""
        self.session = session

    @abstractmethod
    def propose(self, limit: int) -> Proposal:
        """Draft at most `limit` ≥ 1 tokens for every active row."""

    def prefilled(self) -> None:
        """Make up for a prefill that ran without this drafter; called before `begin`, once the layers are set.

        What drafts learn from tokens and committed slots needs nothing of it. No committed slot may be changed.
        """

    def begin(self) -> None:
        """Prepare after prefill, when every row has its first token."""

    def observe(self, feedback: Feedback) -> None:
        """Learn from one verify pass, before its tokens are committed."""

    def keep_rows(self, kept: list[int]) -> None:
        """Drop state of rows that ended; called before the session drops them."""

    def finish(self) -> None:
        """Keep for later decodings what this one learned; called once, after the last round."""

    def report(self) -> dict[str, Any]:
        """Return JSON-ready facts about this decoding that its counters do not show; changes nothing."""
        return {}

    def seconds(self) -> dict[str, float]:
        """Return named shares of the draft seconds worth telling apart, such as a search."""
        return {}

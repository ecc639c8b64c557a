"""What a draft strategy is: one file, one class, the same questions answered by each."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from ssd_infer.engine.drafter import Drafter, DraftParams
from ssd_infer.engine.loop import Plan
from ssd_infer.engine.session import Session
from ssd_infer.engine.target import Target
from ssd_infer.errors import ConfigError, Problem, one_line
from ssd_infer.strategies.reported import Reported

__all__ = ["Auto", "DraftParams", "Resolved", "Strategy", "at_least"]

Auto = Literal["auto"]


@dataclasses.dataclass(slots=True)
class Resolved:
    """A strategy with every `auto` resolved; `params=None` means: decode plainly, for the reason in `note`."""

    params: DraftParams | None
    note: str = ""
    predicted_speedup: float | None = None
    search: dict[str, Any] = dataclasses.field(default_factory=dict)
    """JSON-ready facts about a search that resolved it: method, seconds, what was found."""


class Strategy(Drafter, Reported):
    """A drafter with a name, which answers before any session whether it applies, and with which parameters."""

    Params: ClassVar[type[DraftParams]] = DraftParams
    by_batch: ClassVar[bool] = False
    """Whether its `auto` depends on how many prompts are decoded together."""
    evaluated: ClassVar[Mapping[str, Any]] = {}
    """What an evaluation gives parameters that are left out, where it is not their default."""

    @classmethod
    def plan(cls, session: Session, params: DraftParams) -> Plan:
        """Return how `session` is decoded with this draft."""
        return Plan(cls(session, params))

    @classmethod
    def max_draft(cls, params: DraftParams) -> int:
        """Return the longest proposal `params` can lead to."""
        return int(getattr(params, "gamma", 0))

    @classmethod
    def applicable(cls, target: Target) -> str | None:
        """Return None when this strategy works on `target`, otherwise the reason in one sentence."""
        del target
        return None

    @classmethod
    def check_applies(cls, target: Target) -> None:
        """Raise ConfigError with the reason when this strategy does not work on `target`, or cannot tell."""
        try:
            reason = cls.applicable(target)
        except Exception as error:
            raise _inapplicable(
                cls.info.name, f"looking whether it applies failed with {one_line(error)}"
            ) from error
        if reason is not None:
            raise _inapplicable(cls.info.name, reason)

    @classmethod
    def unsupported_reason(cls, target: Target) -> str | None:
        """Return None when this strategy works on `target`, otherwise the reason, whatever `applicable` runs into."""
        try:
            cls.check_applies(target)
        except ConfigError as error:
            return error.problems[0].rule.removeprefix(_INAPPLICABLE)
        return None

    @classmethod
    def extra_bytes(cls, target: Target, params: DraftParams) -> int:
        """Return memory the strategy needs beyond plain decoding, in bytes."""
        del target, params
        return 0

    @classmethod
    def claims(cls, params: DraftParams) -> bool:
        """Return whether the output with `params` is promised to be that of plain decoding."""
        del params
        return cls.lossless

    @classmethod
    def resolve(
        cls, target: Target, params: DraftParams, prompts: list[list[int]], do_sample: bool
    ) -> Resolved:
        """Resolve every `auto` in `params`; may decide for plain decoding when no gain is predicted."""
        del target, prompts, do_sample
        return Resolved(params)

    @classmethod
    def prepare(
        cls, target: Target, raw: Mapping[str, Any] | None, prompts: list[list[int]], do_sample: bool
    ) -> Resolved:
        """Check that the strategy applies, parse `draft_params`, and resolve every `auto` (ConfigError otherwise)."""
        cls.check_applies(target)
        return cls.resolve(target, cls.parse(raw, target), prompts, do_sample)

    @classmethod
    def parse(cls, raw: Mapping[str, Any] | None, target: Target | None) -> DraftParams:
        """Build typed parameters from `draft_params`; raises ConfigError with all problems together.

        Before a model is loaded `target` is None, and what depends on it is not checked.
        """
        raw = dict(raw or {})
        hints = typing.get_type_hints(cls.Params)
        known = {field.name: hints[field.name] for field in dataclasses.fields(cls.Params)}
        problems = [
            _unknown(cls.info.name, key, value, known) for key, value in raw.items() if key not in known
        ]
        typed = [key for key in raw if key in known]
        problems += [problem for key in typed if (problem := _mistyped(key, raw[key], known[key]))]
        if problems:
            raise ConfigError(problems)
        params = cls.Params(**raw)
        problems = params.problems(target)
        if problems:
            raise ConfigError(problems)
        return params


_INAPPLICABLE = "does not apply to this model: "


def _inapplicable(name: str, reason: str) -> ConfigError:
    return ConfigError([Problem("draft", _INAPPLICABLE + reason, name)])


def at_least(name: str, value: object, floor: int) -> list[Problem]:
    """Return a problem when the integer `value` is below `floor`; "auto" passes."""
    if isinstance(value, int) and value < floor:
        return [Problem(f"draft_params.{name}", f"must be >= {floor}", value, f"try {floor}")]
    return []


def _unknown(draft: str, key: str, value: Any, known: Mapping[str, Any]) -> Problem:
    return Problem(
        f"draft_params.{key}", f"is no parameter of draft {draft!r}", value, f"it takes {', '.join(known)}"
    )


def _mistyped(key: str, value: Any, hint: Any) -> Problem | None:
    if _matches(value, hint):
        return None
    return Problem(f"draft_params.{key}", f"must be {_said(hint)}", value, "")


_WORDS = {int: "an integer", float: "a number", bool: "true or false", str: "a string", type(None): "null"}


def _said(hint: Any) -> str:
    """Return what a hint allows in words."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return " or ".join(map(repr, parts))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(_said, parts))
    if origin in (list, tuple):
        return f"a list, each {_said(parts[0])}"
    return _WORDS.get(hint) or str(getattr(hint, "__name__", hint))


def _matches(value: Any, hint: Any) -> bool:
    """Check a value against the few hint forms parameters use: scalars, literals, unions, lists, tuples."""
    origin = typing.get_origin(hint)
    if origin is Literal:
        return value in typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_matches(value, option) for option in typing.get_args(hint))
    if origin in (list, tuple):
        return isinstance(value, (list, tuple)) and all(
            _matches(item, typing.get_args(hint)[0]) for item in value
        )
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)

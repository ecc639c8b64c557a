"""Errors that reach a person: each is one screen of text and an exit code other than zero."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


class SSDError(Exception):
    """Base of every error this toolkit raises on purpose; entry points print it without a traceback."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One violated rule of a configuration: dotted `key` as typed, `rule`, offending `value`, `remedy`."""

    key: str
    rule: str
    value: object
    remedy: str = ""

    def __str__(self) -> str:
        tail = f"; {self.remedy}" if self.remedy else ""
        return f"{self.key}: {self.rule} (got {self.value!r}){tail}"


class ConfigError(SSDError):
    """All problems of one configuration together, one line each, raised before any weights load."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class CheckpointError(SSDError):
    """A checkpoint directory is missing, damaged, or does not match what it claims to be."""


class DataError(SSDError):
    """A dataset is missing, empty, malformed, or too small for the block size asked for."""


class OutputError(SSDError):
    """What was made cannot be written where it was asked for."""


class NoTokenError(SSDError, ValueError):
    """There is no token to draw: scores that are no numbers, or rules that leave none."""


class DraftError(SSDError, ValueError):
    """A draft proposed what cannot be verified: tensors of another shape or type than it promises."""


class UnsupportedModelError(SSDError):
    """The architecture cannot be decoded by this engine; the message says which property is missing."""


def one_line(error: BaseException) -> str:
    """Describe an exception in one line: its type and message."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:300] if text else type(error).__name__

"""What the strategy for speech recognisers answers; its room decodes these models without a draft too."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

from torch import Tensor

from ssd_infer.families.speech.result import Decoded
from ssd_infer.families.speech.utterances import Utterance
from ssd_infer.strategies.reported import KindStrategy


@dataclass(frozen=True, slots=True)
class SpeechDraft:
    """One way to decode: its row, and the method and parameters it runs with."""

    name: str
    role: Literal["strategy", "peer"]
    """Whether it drafts, or is another way that a user might take."""
    method: str
    params: Any
    shown: Mapping[str, Any]
    """Parameters that its row tells; those that matter to it."""
    claimed: bool = False
    """Whether it promises the text of plain decoding."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What a strategy is told of a row of its own that was measured."""

    draft: SpeechDraft
    chosen: Any
    """What `calibrate` returned."""
    vocab_size: int
    first: bool
    """Whether it was measured at the first batch size, whose rows carry what is said once."""
    doubt: Callable[[str], dict[str, Any]]
    """Measure of doubt → how well it tells right drafts from wrong ones: AUROC, and deciles of both, in nats."""


class SpeechStrategy(KindStrategy):
    """A strategy that drafts transcripts; all methods belong to the class."""

    @classmethod
    @abstractmethod
    def generate(cls, *arguments: Any, **named: Any) -> NoReturn:
        """Refuse token prompts: a speech model takes audio."""

    @classmethod
    @abstractmethod
    def check(cls, draft: str, given: Mapping[str, Any], vocab_size: int | None) -> None:
        """Raise ConfigError when `draft=` or its parameters are wrong; without V only its name is checked."""

    @classmethod
    @abstractmethod
    def calibrate(cls, model: Any, processor: Any, dev: Sequence[Utterance]) -> Any:
        """Return what the dev set says about the choice of parameters."""

    @classmethod
    @abstractmethod
    def notes(cls, chosen: Any) -> list[str]:
        """Return what a reader of the report must know of that choice."""

    @classmethod
    @abstractmethod
    def remember(cls, model: Any, folder: Path, chosen: Any) -> None:
        """Save the choice beside the checkpoint in `folder`, for every later `auto`."""

    @classmethod
    @abstractmethod
    def drafts(cls, draft: str, given: Mapping[str, Any], vocab_size: int, chosen: Any) -> list[SpeechDraft]:
        """Return the ways to decode that `draft=` asks an evaluation for, in the order of its report."""

    @classmethod
    @abstractmethod
    def recognise(
        cls, model: Any, processor: Any, waves: Sequence[Tensor], draft: SpeechDraft | None
    ) -> Decoded:
        """Decode mono `waves` `(N_i,)`, features and encoder included, with a draft or plainly; phases are timed."""

    @classmethod
    @abstractmethod
    def decode(cls, model: Any, encoded: Any, draft: SpeechDraft | None, most: int) -> list[list[int]]:
        """Return the tokens, at most `most`, of each encoded utterance, with a draft or plainly."""

    @classmethod
    @abstractmethod
    def facts(cls, heard: Heard) -> dict[str, Any]:
        """Return additions to a row's `extra`; those under `speech` join what its kind says there."""

    @classmethod
    @abstractmethod
    def remarks(cls, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return what is worth saying of rows that promise nothing and so cannot win; parts of one sentence."""

"""What differs between kinds of models in an evaluation; the story itself is told once, in `runner` and `section`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol, cast

import torch

from ssd_infer.checkpoint.kinds import Kind
from ssd_infer.config.evaluation import EvalSettings
from ssd_infer.entries import imported
from ssd_infer.evaluation.bench import Say
from ssd_infer.evaluation.carried import carry
from ssd_infer.evaluation.contenders import Contender
from ssd_infer.evaluation.measure import Measurements, Record
from ssd_infer.evaluation.setting import Section, Setting
from ssd_infer.evaluation.strategies import Absent, Candidates
from ssd_infer.evaluation.studies import Findings, Round
from ssd_infer.evaluation.summary import Scoreboard, scoreboard
from ssd_infer.evaluation.verdict import verdict
from ssd_infer.tuning.budget import Budget

Row = dict[str, Any]
PLACES: dict[Kind, str] = {
    "causal": "ssd_infer.evaluation.causal.causal_kind:CausalKind",
    "diffusion": "ssd_infer.evaluation.diffusion.diffusion_kind:DiffusionKind",
    "speech": "ssd_infer.evaluation.speech.speech_kind:SpeechKind",
}
"""Kind of model → `module:Class` that answers for it, imported when a checkpoint of that kind is evaluated."""


def kind_class(kind: Kind) -> type[EvalKind]:
    """Return the class that answers for models of `kind`."""
    return cast("type[EvalKind]", imported(PLACES[kind]))


class Context(Protocol):
    """What every evaluation holds on to."""

    settings: EvalSettings
    budget: Budget
    notes: list[str]
    """Warnings collected on the way."""

    @property
    def say(self) -> Say:
        """Take one line a phase."""

    @property
    def device(self) -> torch.device:
        """Device of the model."""

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the model."""


class EvalKind(ABC):
    """One evaluation of one checkpoint, as models of its kind are evaluated."""

    verb: ClassVar[str] = "decoding"
    counts_drafts: ClassVar[bool] = True
    """Whether a strategy without a drafted token in its counters decoded plainly."""
    context: Context

    @classmethod
    @abstractmethod
    def open(cls, settings: EvalSettings, say: Say) -> EvalKind:
        """Load the checkpoint and what is decoded; raises SSDError before any measurement when something is wrong."""

    @abstractmethod
    def quality(self) -> Row:
        """Return the report's `quality`."""

    def study(self) -> list[Findings]:
        """Learn what the choice of parameters needs, before any is made; return what is added to rows."""
        return []

    @abstractmethod
    def settings(self) -> list[Setting]:
        """Return the settings in the order in which they are measured."""

    @abstractmethod
    def candidates(self, setting: Setting) -> Candidates:
        """Return everybody who competes, baselines first, with all parameters chosen, and who is absent."""

    @property
    def max_new_tokens(self) -> int:
        """Return the tokens a prompt gets at most; 0 where outputs end by themselves."""
        return self.context.settings.max_new_tokens

    def studies(self, setting: Setting) -> Round | None:
        """Return the round of studies that share the measuring time, if strategies have any."""
        del setting
        return None

    def board(self, setting: Setting, contenders: list[Contender], found: Measurements) -> Scoreboard | None:
        """Return what all figures are divided by; None when no plain decoding ran."""
        return scoreboard(found, contenders, setting.sampling, self.context.settings.seed)

    @property
    def refusal(self) -> str | None:
        """Return why the engine has no view of the model; rows say it, so that nobody needs to be warned of it."""
        return None

    @abstractmethod
    def judge(self, section: Section) -> None:
        """Fill the section's verdicts, and what its rows tell beside; without a board there is nothing to judge."""

    def absent(self, present: set[str]) -> list[Absent]:
        """Return who has no row after all settings, of those every report names."""
        del present
        return []

    def more_peers(self) -> list[Row]:
        """Return peers that no setting measured."""
        return []

    def texts(self, section: Section) -> dict[str, Row]:
        """Return a decoded text for rows that drafted, with who wrote each token."""
        del section
        return {}

    def show(self, baselines: Sequence[Row], peers: Sequence[Row], strategies: Sequence[Row]) -> list[str]:
        """Put tables and plots of strategies into rows; return warnings."""
        del baselines, peers
        return carry(strategies)

    @abstractmethod
    def protocol(self, sections: Sequence[Section]) -> Row:
        """Return the report's `protocol`."""

    def verdict(self, baselines: Sequence[Row], peers: Sequence[Row], strategies: Sequence[Row]) -> Row:
        """Return the report's conclusion."""
        del baselines
        return verdict(list(strategies), list(peers), self.context.notes)

    @abstractmethod
    def sample(self, section: Section, name: str, record: Record) -> Row:
        """Return the line of samples.jsonl of one timed call of the contender `name`."""

    def remember(self) -> None:
        """Keep what was found for later decodings; called once the report is written."""

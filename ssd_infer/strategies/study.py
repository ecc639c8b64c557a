"""What a strategy may study beyond the timed decodings: facts of its own, measured within a share of the time limit.

The evaluation knows no strategy: it asks each for its studies, runs them, and puts what they find into the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ssd_infer.engine.sampling import SamplingParams

if TYPE_CHECKING:
    from ssd_infer.config.evaluation import EvalSettings
    from ssd_infer.engine.prefilled import FilledRow
    from ssd_infer.engine.target import Target
    from ssd_infer.tuning.budget import Deadline

When = Literal["start", "contexts", "prefilled", "timed", "streams"]
"""Moments of an evaluation: before any choice of parameters; the same, where long contexts were asked for; after the
sweep of contexts, for whom it measured; after a row was timed at a sampling setting; after it was judged, where streams
whose text changes were asked for."""
Facts = Mapping[str, Any]
"""JSON-ready data."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen in one part of a run; temperature 0 is greedy."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    @property
    def greedy(self) -> bool:
        """Tell whether nothing is drawn."""
        return self.temperature == 0.0

    @property
    def suffix(self) -> str:
        """Return what a row name carries: nothing when greedy, else for instance `:t1`."""
        return "" if self.greedy else f":t{self.temperature:g}"

    @property
    def params(self) -> SamplingParams:
        """Return the same as the engine takes it."""
        return SamplingParams(not self.greedy, self.temperature or 1.0, self.top_k, self.top_p)

    def arguments(self) -> dict[str, Any]:
        """Return the sampling arguments that `ssd_infer.generate` and transformers' `generate` share."""
        if self.greedy:
            return {"do_sample": False}
        return {"do_sample": True, "temperature": self.temperature, "top_k": self.top_k, "top_p": self.top_p}


@dataclass(frozen=True, slots=True)
class Trial:
    """One parameter setting of a strategy that a study wants timed."""

    draft: str
    params: dict[str, Any]


TimeTrials = Callable[[Sequence[Trial], int, "Deadline"], list[float | None]]
"""(trials, tokens a prompt, deadline) → speedup of each over plain decoding on the calibration prompts, None for one
that failed; nothing at all where the time did not suffice."""


@dataclass(slots=True)
class StudyContext:
    """What a study may use."""

    settings: EvalSettings
    target: Target | str
    """The engine's view of the model, or why there is none."""
    tokenizer: Any
    wanted: bool
    """Whether the run asked for this strategy."""
    calibration: list[list[int]]
    prompts: list[list[int]]
    """Measured prompts of all tasks."""
    streams: list[list[list[int]]]
    """Texts to decode one after another as one stream, a list a stream; none unless they were asked for."""
    deadline: Deadline
    """By when the study must be done."""
    calibrated: Deadline
    """By when a calibration must be done that the choice of parameters needs as well."""
    say: Callable[[str], None]
    time_trials: TimeTrials
    sampling: Sampling = field(default_factory=Sampling)
    params: dict[str, Any] | None = None
    """Parameters the row was timed with; None before, and where it decodes plainly."""
    new_tokens: int = 0
    """Tokens decoded a prompt in the timed runs."""
    notes: list[str] = field(default_factory=list)
    """Warnings for the report."""
    model: Any = None
    """The model itself, where `target` is no view of it."""
    filled: Sequence[FilledRow] = ()
    """At `prefilled`: the rows of the longest context of the sweep."""


def no_fault(facts: Facts) -> str | None:
    """Return None: most studies decode nothing that could be wrong."""
    del facts
    return None


@dataclass(frozen=True, slots=True)
class Study:
    """One study of a strategy: what it finds goes to `extra[key]` of the strategy's row, beside what is there."""

    key: str
    run: Callable[[StudyContext], Facts]
    """Return the facts; none leave the row as it is."""
    when: When = "timed"
    fault: Callable[[Facts], str | None] = no_fault
    """Say what of the facts breaks the promise of unchanged output; this fails the row."""

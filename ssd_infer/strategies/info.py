"""What is known of a draft strategy before torch is loaded: enough to check a name and to list a row."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StrategyInfo:
    """Name and place of a strategy; the same facts serve the command line, the evaluation and the report."""

    name: str
    """What `draft=` takes, such as `early_exit+ngram`."""
    kind: str
    """Kind of model it drafts for: causal, diffusion or speech."""
    group: str
    """What it is listed under, such as `skip_layer`; `draft=GROUP` asks for all of its members."""
    variants: tuple[str, ...] = ()
    """Names after a colon that are rows of their own, such as `lossless` of `ctc_draft:lossless`."""
    in_all: bool = True
    """Whether draft=all measures it; a costly one waits to be asked for, by its name or its group's."""
    listed: bool = True
    """Whether every report has a row for it; others are peers, what a user might take instead."""
    needs: str = ""
    """What a checkpoint that it does not fit lacks, as the end of a sentence."""
    extra: str | None = None
    """The optional dependencies it needs (`pip install ssd-toolkit[EXTRA]`)."""
    order: int = 100
    """Place in a report, ascending; then by name."""

    @property
    def row(self) -> str:
        """Name of its row in a report: `early_exit+ngram` is the variant `early_exit:ngram`."""
        return row_name(self.name)

    @property
    def rows(self) -> tuple[str, ...]:
        """Names of all rows it can have."""
        return (self.row, *(f"{self.row}:{variant}" for variant in self.variants))


@dataclass(frozen=True, slots=True)
class Entry:
    """A strategy of this package: what is known of it, and where its class is."""

    info: StrategyInfo
    place: str
    """`module:Class`, imported when the strategy is first used."""


def row_name(draft: str) -> str:
    """Return the row name of a draft as typed: `early_exit+ngram` is `early_exit:ngram`."""
    return draft.replace("+", ":")

"""What a strategy for any kind of model adds to a report: facts it studies of itself, and how they are shown."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ssd_infer.report.table import Plot, Table
from ssd_infer.strategies.info import StrategyInfo

if TYPE_CHECKING:
    from ssd_infer.strategies.study import Study, StudyContext


class Reported:
    """A strategy by name, with studies, tables and plots of its own; most have none."""

    info: ClassVar[StrategyInfo]

    @classmethod
    def studies(cls, context: StudyContext) -> list[Study]:
        """Return what it studies of itself in an evaluation, of what `context` asks for; most study nothing."""
        del context
        return []

    @classmethod
    def tables(cls, row: Mapping[str, Any]) -> list[Table]:
        """Return tables of its own for the report, made from its measured `row`; what the row lacks is left out."""
        del row
        return []

    @classmethod
    def plots(cls, row: Mapping[str, Any]) -> list[Plot]:
        """Return plots of its own for the report, made from its measured `row`."""
        del row
        return []

    @classmethod
    def shared_plots(cls, row: Mapping[str, Any]) -> list[Plot]:
        """Return plots of what all its rows share; the first of them that has any carries them for all."""
        del row
        return []


class KindStrategy(Reported, ABC):
    """The strategy for a kind of model that is not causal; its room decodes that kind, with a draft and without."""

    @classmethod
    @abstractmethod
    def generate(cls, *arguments: Any, **named: Any) -> Any:
        """Decode, or refuse to, as `ssd_infer.generate` does, with its arguments; ends the streamer it is given."""

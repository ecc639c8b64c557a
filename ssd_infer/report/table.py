"""A table as data: strategies make them, a report carries them, and every renderer draws them alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

Cell = str | int | float | None


class Word(str):
    """A cell that stands out: `kind` is how it looks, `hint` what is said of it on a closer look."""

    __slots__ = ("hint", "kind")
    kind: str
    hint: str

    def __new__(cls, text: str, kind: str = "", hint: str = "") -> Self:
        """Return `text` with its look and its hint."""
        made = super().__new__(cls, text)
        made.kind, made.hint = kind, hint
        return made


@dataclass(frozen=True, slots=True)
class Table:
    """Titles and rows of a table; text cells stand on the left, numbers on the right."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""
    """One sentence on how to read it."""
    figures: range | None = None
    """Columns of figures, which stand on the right; None: those that hold nothing but numbers."""
    looks: tuple[str, ...] = ()
    """How each row looks, where one differs from another."""
    orders: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Orders it can be read in: what by, and each row's place."""

    def __post_init__(self) -> None:
        """Raise ValueError when cells and columns, or looks and rows, are not as many."""
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"table {self.title!r}: {len(row)} cells under {len(self.columns)} columns")
        for given in (self.looks, *(places for _, places in self.orders)):
            if given and len(given) != len(self.rows):
                raise ValueError(
                    f"table {self.title!r}: {len(given)} looks or places of {len(self.rows)} rows"
                )

    def right(self, column: int) -> bool:
        """Tell whether a column stands on the right."""
        if self.figures is not None:
            return column in self.figures
        return all(not isinstance(row[column], str) for row in self.rows)

    def look(self, row: int) -> str:
        """Return how a row looks; empty for most."""
        return self.looks[row] if self.looks else ""

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "title": self.title,
            "columns": list(self.columns),
            "rows": [list(row) for row in self.rows],
            "caption": self.caption,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Table:
        """Read what `to_json` wrote, from a report that passed its schema."""
        rows = tuple(tuple(row) for row in data["rows"])
        return cls(data["title"], tuple(data["columns"]), rows, data.get("caption", ""))


@dataclass(frozen=True, slots=True)
class Series:
    """One line, or one set of bars, of a plot."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]

    def __post_init__(self) -> None:
        """Raise ValueError when there are not as many x as y."""
        if len(self.x) != len(self.y):
            raise ValueError(f"series {self.name!r}: {len(self.x)} x and {len(self.y)} y")


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot as data: what is drawn over what."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    caption: str = ""
    """One sentence on how to read it."""
    kind: str = "line"
    """`line` or `bar`."""

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "title": self.title,
            "x_label": self.x_label,
            "y_label": self.y_label,
            "series": [{"name": one.name, "x": list(one.x), "y": list(one.y)} for one in self.series],
            "caption": self.caption,
            "kind": self.kind,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Plot:
        """Read what `to_json` wrote, from a report that passed its schema."""
        series = tuple(Series(one["name"], tuple(one["x"]), tuple(one["y"])) for one in data["series"])
        labels = (data["title"], data["x_label"], data["y_label"])
        return cls(*labels, series, data.get("caption", ""), data.get("kind", "line"))

    def table(self) -> Table:
        """Return the points of the plot as a table, for renderers that cannot draw."""
        places = sorted({x for one in self.series for x in one.x})
        known = [dict(zip(one.x, one.y, strict=True)) for one in self.series]
        rows = tuple((place, *(points.get(place) for points in known)) for place in places)
        return Table(self.title, (self.x_label, *(one.name for one in self.series)), rows, self.caption)


def tables_of(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, Table]]:
    """Return the tables that rows of a report carry, each with its row's name."""
    return [(row["name"], Table.from_json(data)) for row in rows for data in row["extra"].get("tables", [])]


def plots_of(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, Plot]]:
    """Return the plots that rows of a report carry, each with its row's name."""
    return [(row["name"], Plot.from_json(data)) for row in rows for data in row["extra"].get("plots", [])]

"""A table as data: strategies make them, a report carries them, and every renderer draws them alike."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

Cell = str | int | float | None
_FIGURE = re.compile(
    r"[-+−±]?\d[\d.,]*(?: ?[–/] ?\d[\d.,]*)*(?: ?(?:×|%|[kMGT]?i?B))?(?: \(\d[\d.]* ?%?\))?|–"
)
"""Text that is a figure: `1.20×`, `0.9–1.1`, `12 %`, `3.5 MiB`, or the dash of a missing one."""


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
    """Columns of figures, which stand on the right; None: those that hold nothing but numbers, written out or not."""
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
        return all(_is_figure(row[column]) for row in self.rows)

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


def _is_figure(cell: Cell) -> bool:
    return not isinstance(cell, str) or _FIGURE.fullmatch(cell) is not None


@dataclass(frozen=True, slots=True)
class Series:
    """One line, one set of bars or points, or the cells of one heat map of a plot."""

    name: str
    x: tuple[float, ...]
    y: tuple[float | None, ...]
    """None leaves a gap."""
    labels: tuple[str, ...] = ()
    """A text at each point."""
    panel: str = ""
    """Title of the panel it is drawn in; series of one title share a panel."""
    values: tuple[float, ...] = ()
    """What colours the cell at each point of a heat map."""
    style: str = ""
    """`line`, `dashed` or `points`; what the plot's kind says where it is empty."""

    def __post_init__(self) -> None:
        """Raise ValueError when x, y, labels and values do not go together."""
        if len(self.x) != len(self.y):
            raise ValueError(f"series {self.name!r}: {len(self.x)} x and {len(self.y)} y")
        for what, given in (("labels", self.labels), ("values", self.values)):
            if given and len(given) != len(self.x):
                raise ValueError(f"series {self.name!r}: {len(self.x)} x and {len(given)} {what}")

    def to_json(self) -> dict[str, Any]:
        """Return plain data, without what is empty."""
        data = {"name": self.name, "x": list(self.x), "y": list(self.y)}
        more = {"labels": list(self.labels), "values": list(self.values)}
        more |= {"panel": self.panel, "style": self.style}
        return data | {key: value for key, value in more.items() if value}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Series:
        """Read what `to_json` wrote, from a report that passed its schema."""
        return cls(
            data["name"],
            tuple(data["x"]),
            tuple(data["y"]),
            tuple(data.get("labels", ())),
            data.get("panel", ""),
            tuple(data.get("values", ())),
            data.get("style", ""),
        )


@dataclass(frozen=True, slots=True)
class Mark:
    """A straight line across a plot, with a name."""

    axis: str
    """`x`: it stands at a place of the x axis; `y`: it lies at one of the y axis."""
    at: float
    label: str = ""
    panel: str = ""
    """Title of the panel it is drawn in; empty: in all."""


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
    """`line`, `bar`, `scatter` or `heatmap`."""
    marks: tuple[Mark, ...] = ()
    log_x: bool = False
    from_zero: bool = False
    """Whether the y axis begins at 0."""
    centre: float | None = None
    """Value of a heat map that is neither good nor bad."""
    listed: bool = True
    """Whether renderers that cannot draw list its points; not, where a table says the same or there are too many."""

    def __post_init__(self) -> None:
        """Raise ValueError for a heat map whose cells have no values."""
        if self.kind == "heatmap" and any(len(one.values) != len(one.x) or not one.x for one in self.series):
            raise ValueError(f"plot {self.title!r}: every cell of a heat map needs a value")

    def to_json(self) -> dict[str, Any]:
        """Return plain data, without what is as usual."""
        data: dict[str, Any] = {
            "title": self.title,
            "x_label": self.x_label,
            "y_label": self.y_label,
            "series": [one.to_json() for one in self.series],
            "caption": self.caption,
            "kind": self.kind,
        }
        marks = [asdict(mark) for mark in self.marks]
        more = {"marks": marks, "log_x": self.log_x, "from_zero": self.from_zero}
        data |= {key: value for key, value in more.items() if value}
        data |= {} if self.centre is None else {"centre": self.centre}
        return data if self.listed else data | {"listed": False}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Plot:
        """Read what `to_json` wrote, from a report that passed its schema."""
        return cls(
            data["title"],
            data["x_label"],
            data["y_label"],
            tuple(map(Series.from_json, data["series"])),
            data.get("caption", ""),
            data.get("kind", "line"),
            tuple(Mark(**mark) for mark in data.get("marks", ())),
            data.get("log_x", False),
            data.get("from_zero", False),
            data.get("centre"),
            data.get("listed", True),
        )

    @property
    def panels(self) -> list[str]:
        """Titles of its panels, in order."""
        return list(dict.fromkeys(one.panel for one in self.series))

    def table(self) -> Table:
        """Return the points of the plot as a table, for renderers that cannot draw."""
        places = sorted({x for one in self.series for x in one.x})
        known = [dict(zip(one.x, one.y, strict=True)) for one in self.series]
        rows = tuple((place, *(points.get(place) for points in known)) for place in places)
        names = [f"{one.panel}: {one.name}" if one.panel else one.name for one in self.series]
        return Table(self.title, (self.x_label, *names), rows, self.caption)


def tables_of(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, Table]]:
    """Return the tables that rows of a report carry, each with its row's name.

    Tables of several rows under one title and the same columns are one, whose first column names the row.
    """
    found: dict[Any, list[tuple[str, Table]]] = {}
    for row in rows:
        for data in row.get("extra", {}).get("tables", []):
            table = Table.from_json(data)
            found.setdefault((table.title, table.columns), []).append((row["name"], table))
    return [joined[0] if len(joined) == 1 else _one_table(joined) for joined in found.values()]


def _one_table(named: list[tuple[str, Table]]) -> tuple[str, Table]:
    first = named[0][1]
    rows = tuple((name, *row) for name, table in named for row in table.rows)
    table = Table(first.title, ("name", *first.columns), rows, first.caption)
    return f"{len(named)} rows", table


def plots_of(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, Plot]]:
    """Return the plots that rows of a report carry, each with its row's name.

    Plots of several rows that differ in their series only are one, whose series carry the names of the rows.
    """
    found: dict[Any, list[tuple[str, Plot]]] = {}
    for row in rows:
        for data in row.get("extra", {}).get("plots", []):
            plot = Plot.from_json(data)
            same = plot if plot.kind == "heatmap" else replace(plot, series=())
            found.setdefault(same, []).append((row["name"], plot))
    return [joined[0] if len(joined) == 1 else _one_plot(joined) for joined in found.values()]


def _one_plot(named: list[tuple[str, Plot]]) -> tuple[str, Plot]:
    series = tuple(
        replace(one, name=name if len(plot.series) == 1 else f"{name}, {one.name}")
        for name, plot in named
        for one in plot.series
    )
    return f"{len(named)} rows", replace(named[0][1], series=series)

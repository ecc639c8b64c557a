"""Draw the plots that rows of a report carry as data."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.colors import Normalize, TwoSlopeNorm
from matplotlib.figure import Figure

from ssd_infer.report.format import plain
from ssd_infer.report.table import Mark, Plot, Series

INK, MUTED, PALE = "#1f2937", "#6b7280", "#9ca3af"
MARKERS = ("o", "s", "D", "^")
"""Of points; the next one where all colours are taken."""
CROWD = 50
"""Points from which on a series is background, and pale."""
Pen = tuple[str, str]
"""Colour and marker."""
WIDE = 0.8
"""Width of a group of bars, as a share of the distance between groups."""
DASHES = (0, (4, 3))
MOST_TICKS = 12
"""Places of the x axis that are all named; more get even steps."""


def draw_plot(plot: Plot, colours: tuple[str, ...]) -> Figure:
    """Draw `plot`, its panels side by side; the legend stands beside them, never over what is drawn."""
    if plot.kind == "heatmap":
        return _heatmaps(plot)
    panels = plot.panels
    figure = Figure(figsize=(6.4 if len(panels) == 1 else 1.2 + 3.2 * len(panels), 3.4))
    drawn = figure.subplots(1, len(panels), squeeze=False, sharey=plot.from_zero)[0]
    names = list(dict.fromkeys(one.name for one in plot.series))
    pens = {name: _pen(index, colours) for index, name in enumerate(names)}
    for axes, panel in zip(drawn, panels, strict=True):
        _panel(axes, plot, [one for one in plot.series if one.panel == panel], pens)
        axes.set_title(plain(panel), fontsize=10.5)
    if plot.from_zero:  # once all are drawn: panels share the axis, and the first would settle its upper end
        drawn[0].set_ylim(bottom=0)
    drawn[0].set_ylabel(plain(plot.y_label))
    if len(names) > 1:
        handles = {plain(name): _handle(drawn, name) for name in names}
        legend = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0), "fontsize": 9}
        drawn[-1].legend(handles.values(), handles.keys(), **legend)
    return figure


def _pen(index: int, colours: tuple[str, ...]) -> Pen:
    return colours[index % len(colours)], MARKERS[index // len(colours) % len(MARKERS)]


def _handle(drawn: Sequence[Axes], name: str) -> object:
    """Return what was drawn first under a name, in any panel."""
    for axes in drawn:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            if label == plain(name):
                return handle
    raise ValueError(f"series {name!r} was not drawn")


def _panel(axes: Axes, plot: Plot, series: list[Series], pens: dict[str, Pen]) -> None:
    """Draw the series of one panel, their marks and labels."""
    for index, one in enumerate(series):
        if plot.kind == "bar" and not one.style:
            _bars(axes, one, index, len(series), pens[one.name][0])
        else:
            _line(axes, one, one.style or ("points" if plot.kind == "scatter" else "line"), pens[one.name])
    if plot.log_x:
        axes.set_xscale("log")
    places = sorted({x for one in series for x in one.x})
    if len(places) <= MOST_TICKS and (plot.log_x or all(float(x).is_integer() for x in places)):
        axes.set_xticks(places, [f"{x:g}" for x in places])
        axes.minorticks_off()
    for mark in plot.marks:
        if mark.panel in ("", series[0].panel):
            _mark(axes, mark)
    axes.set_xlabel(plain(plot.x_label))


def _line(axes: Axes, one: Series, style: str, pen: Pen) -> None:
    up, name = [float("nan") if y is None else y for y in one.y], plain(one.name)
    colour, marker = pen
    if style == "points":
        crowd = len(one.x) >= CROWD
        axes.scatter(
            one.x, up, s=9 if crowd else 30, color=PALE if crowd else colour, marker=marker, label=name
        )
    elif style == "dashed":
        axes.plot(one.x, up, linewidth=1, linestyle=DASHES, color=colour, label=name)
    else:
        axes.plot(one.x, up, marker=marker, markersize=4.5, linewidth=1.8, color=colour, label=name)
    for x, y, label in zip(one.x, up, one.labels, strict=False):
        axes.annotate(plain(label), (x, y), (0, 7), textcoords="offset points", ha="center", fontsize=8)


def _bars(axes: Axes, one: Series, index: int, count: int, colour: str) -> None:
    width = WIDE / count
    places = [x + (index - (count - 1) / 2) * width for x in one.x]
    axes.bar(places, [y or 0.0 for y in one.y], width=width, color=colour, label=plain(one.name))


def _mark(axes: Axes, mark: Mark) -> None:
    """Draw a line across the panel, its name at its end."""
    name = plain(mark.label)[:40]
    if mark.axis == "x":
        axes.axvline(mark.at, color=MUTED, linewidth=1, linestyle=DASHES)
        where = axes.get_xaxis_transform()
        axes.text(mark.at, 1.01, f" {name}", fontsize=8, color=MUTED, transform=where)
    else:
        axes.axhline(mark.at, color=MUTED, linewidth=1, linestyle=DASHES)
        where = axes.get_yaxis_transform()
        axes.text(0.99, mark.at, name, fontsize=8, color=MUTED, transform=where, ha="right", va="bottom")


def _heatmaps(plot: Plot) -> Figure:
    """Draw a heat map a panel, all on one colour scale, the best cell of each outlined."""
    across = sorted({x for one in plot.series for x in one.x})
    up = sorted({y for one in plot.series for y in one.y if y is not None})
    values = [value for one in plot.series for value in one.values]
    norm = colour_scale(values, plot.centre)
    size = (2.2 + 0.46 * len(across) * len(plot.series), 1.3 + 0.34 * len(up))
    figure = Figure(figsize=size)
    panels = figure.subplots(1, len(plot.series), sharey=True, squeeze=False)[0]
    for axes, one in zip(panels, plot.series, strict=True):
        _cells(axes, one, across, up, norm)
        axes.set_title(plain(one.panel or one.name), fontsize=10.5)
        axes.set_xlabel(plain(plot.x_label))
    panels[0].set_ylabel(plain(plot.y_label))
    figure.subplots_adjust(wspace=0.08)
    return figure


def colour_scale(values: list[float], centre: float | None) -> Normalize:
    """Return a colour scale, with equal room on both sides of a centre; close values stay pale."""
    if centre is None:
        return Normalize(min(values), max(values))
    least = 0.4 * abs(centre) or 1.0
    return TwoSlopeNorm(centre, min(*values, centre - least), max(*values, centre + least))


def _cells(axes: Axes, one: Series, across: list[float], up: list[float], norm: Normalize) -> None:
    table = [[float("nan")] * len(across) for _ in up]
    cells = [
        (across.index(x), up.index(y), value)
        for x, y, value in zip(one.x, one.y, one.values, strict=True)
        if y is not None
    ]
    for column, line, value in cells:
        table[line][column] = value
    axes.imshow(table, cmap="RdBu", norm=norm, aspect="auto", origin="lower")
    axes.set_facecolor("#f3f4f6")
    axes.grid(visible=False)
    axes.set_xticks(range(len(across)), [f"{x:g}" for x in across])
    axes.set_yticks(range(len(up)), [f"{y:g}" for y in up])
    best = max(one.values)
    labels = one.labels or tuple(f"{value:.2f}" for value in one.values)
    for (column, line, value), label in zip(cells, labels, strict=False):
        write_cell(axes, (column, line), plain(label), float(norm(value)), value == best)


def write_cell(axes: Axes, place: tuple[int, int], label: str, shade: float, best: bool) -> None:
    """Write into a cell of a heat map, `shade` its place on the colour scale; the `best` one is outlined."""
    colour, weight = "white" if abs(shade - 0.5) > 0.3 else INK, "bold" if best else "normal"
    axes.text(*place, label, ha="center", va="center", fontsize=8, color=colour, fontweight=weight)
    if best:
        left, right, low, high = place[0] - 0.48, place[0] + 0.48, place[1] - 0.46, place[1] + 0.46
        edge = [left, right, right, left, left], [low, low, high, high, low]
        axes.plot(*edge, color="#111827", linewidth=1.6)

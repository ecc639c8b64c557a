"""Draw the plots that rows of a report carry as data."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ssd_infer.report.format import plain
from ssd_infer.report.table import Plot

WIDE = 0.8
"""Width of a group of bars, as a share of the distance between groups."""


def draw_plot(plot: Plot, colours: tuple[str, ...]) -> Figure:
    """Draw `plot`; the legend stands beside the lines, never over them."""
    figure = Figure(figsize=(6.4, 3.4))
    axes = figure.add_subplot()
    draw = _bars if plot.kind == "bar" else _lines
    draw(axes, plot, colours)
    axes.set(xlabel=plain(plot.x_label), ylabel=plain(plot.y_label))
    if len(plot.series) > 1:
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=9)
    return figure


def _lines(axes: Axes, plot: Plot, colours: tuple[str, ...]) -> None:
    for index, one in enumerate(plot.series):
        colour = colours[index % len(colours)]
        axes.plot(
            one.x, one.y, marker="o", markersize=4.5, linewidth=1.8, color=colour, label=plain(one.name)
        )


def _bars(axes: Axes, plot: Plot, colours: tuple[str, ...]) -> None:
    width = WIDE / len(plot.series)
    for index, one in enumerate(plot.series):
        places = [x + (index - (len(plot.series) - 1) / 2) * width for x in one.x]
        axes.bar(places, one.y, width=width, color=colours[index % len(colours)], label=plain(one.name))

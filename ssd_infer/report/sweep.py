"""How cost grows with batch and context: one table and one plot of all drafts, from what their rows carry.

Reports of older versions carry their own table and plot of a sweep, which are drawn as data; their cells are not
drawn again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ssd_infer.report.format import bytes_text, number, params_text, readable, times
from ssd_infer.report.rows import Report, all_rows
from ssd_infer.report.table import Mark, Plot, Series, Table, Word

TITLE = "How cost grows"
HEAD = (
    *("context", "batch", "decoding", "parameters", "tokens/s", "speedup", "α", "τ", "verify"),
    *("peak memory", "same tokens"),
)
CAPTION = (
    "Greedy, from the first token on, all on the same prefilled rows; speedups are over the fastest plain decoding, "
    "verify is a verify pass in plain steps. Who predicts no gain, or drafts nothing, shares plain decoding's figures."
)
_NAMES = {"plain": "plain decoding", "transformers": "transformers' plain decoding"}
_MOST = 3
"""Parameters that are shown; the others are in report.json."""
Cell = dict[str, Any]


def sweep_cells(report: Report) -> list[Cell]:
    """Return every measurement of the sweep once, by context, batch and place in the report."""
    found: dict[tuple[int, int, str], Cell] = {}
    for row in all_rows(report):
        for cell in (row.get("extra", {}).get("sweep") or {}).get("cells", []):
            if "verify_ratio" in cell:
                found.setdefault((cell["context"], cell["batch"], cell["name"]), cell)
    order = list(dict.fromkeys(name for _, _, name in found))
    return [found[key] for key in sorted(found, key=lambda key: (key[0], key[1], order.index(key[2])))]


def sweep_table(report: Report) -> Table:
    """Return a line for everybody at every context and batch; without rows where nothing was swept."""
    lines = tuple(map(_line, sweep_cells(report)))
    return Table(TITLE, HEAD, lines, CAPTION, range(4, 10))


def _line(cell: Cell) -> tuple[Any, ...]:
    return (
        cell["context"],
        cell["batch"],
        Word(_name(cell["name"]), "name", cell["name"]),
        Word(_params(cell), "params", cell["note"]),
        number(cell["tokens_per_second"], 1),
        times(cell["speedup"]),
        number(cell["alpha"]),
        number(cell["tau"]),
        number(cell["verify_ratio"]),
        bytes_text(cell["peak_bytes"]),
        _verdict(cell),
    )


def _name(name: str) -> str:
    return _NAMES.get(name) or readable(name)


def _params(cell: Cell) -> str:
    if cell["plain"]:
        return "plain decoding"
    shown = {key: value for key, value in cell["params"].items() if (key, value) != ("confidence", 0)}
    few = dict(list(shown.items())[:_MOST])
    return params_text(few) + (", …" if len(shown) > _MOST else "")


def _verdict(cell: Cell) -> Word:
    """Return whether the tokens are plain decoding's; others are no failure of a draft that promises none."""
    if cell["verdict"] == "fail" and not cell["claimed"]:
        return Word("lossy", "badge lossy", "lossy by design: its output differs from plain decoding's")
    return Word(cell["verdict"].replace("_", " "), f"badge {cell['verdict']}")


def sweep_plot(report: Report) -> Plot | None:
    """Draw the speedup of all drafts against batch, a panel a context; against context where there is one batch."""
    cells = sweep_cells(report)
    own = [cell for cell in cells if cell["name"] not in _NAMES]
    if not own:
        return None
    by_batch = len({cell["batch"] for cell in own}) > 1 or len({cell["context"] for cell in own}) == 1
    across, panel = ("batch", "context") if by_batch else ("context", "batch")
    titles = {place: f"context {place}" if by_batch else f"batch {place}" for place in _places(own, panel)}
    series = [
        _series(name, [cell for cell in own if (cell[panel], cell["name"]) == (place, name)], across, title)
        for place, title in titles.items()
        for name in dict.fromkeys(cell["name"] for cell in own)
    ]
    label = "batch (rows)" if by_batch else "context (tokens)"
    caption = "Over the fastest plain decoding of each batch and context; drafts that decode plainly lie on its line."
    drawn = tuple(one for one in series if one.x)
    marks = (Mark("y", 1.0),)
    return Plot(
        TITLE, label, "speedup", drawn, caption, marks=marks, log_x=True, from_zero=True, listed=False
    )


def _places(cells: Sequence[Cell], key: str) -> list[int]:
    return sorted({cell[key] for cell in cells})


def _series(name: str, cells: Sequence[Cell], across: str, panel: str) -> Series:
    ordered = sorted(cells, key=lambda cell: int(cell[across]))
    return Series(
        readable(name),
        tuple(cell[across] for cell in ordered),
        tuple(cell["speedup"] for cell in ordered),
        panel=panel,
    )

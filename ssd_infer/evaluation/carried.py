"""Let every strategy add tables and plots of its own to its measured rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ssd_infer.errors import one_line
from ssd_infer.report.table import Plot, Table
from ssd_infer.strategies import registry


def show(row: dict[str, Any], tables: Sequence[Table], plots: Sequence[Plot]) -> None:
    """Put tables and plots into a row of a report; none leave it as it is."""
    found = {"tables": [table.to_json() for table in tables], "plots": [plot.to_json() for plot in plots]}
    row["extra"] |= {key: data for key, data in found.items() if data}


def carry(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Put what strategies show of their rows into `extra.tables` and `extra.plots`; return warnings.

    A row without figures is asked for only where a study found something. What all rows of a strategy share is shown
    by the first that has it. A strategy that fails here keeps its row: what it could not show is a warning.
    """
    warnings = []
    shared: set[str] = set()
    for row in rows:
        info = registry.of_row(row["name"])
        if row["status"] != "ok" and not row["extra"]:
            continue
        strategy = registry.reported(info.name)
        try:
            common = [] if info.name in shared else strategy.shared_plots(row)
            shared |= {info.name} if common else set()
            show(row, strategy.tables(row), [*strategy.plots(row), *common])
        except Exception as error:  # noqa: BLE001  a table that cannot be made must not cost the row
            warnings.append(f"{row['name']}: its own tables could not be made: {one_line(error)}")
    return warnings

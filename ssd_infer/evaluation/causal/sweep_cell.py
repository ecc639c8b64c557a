"""One batch and context of the sweep: parameters are settled for it, then all take turns on the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ssd_infer.engine.prefilled import FilledRow, Prefilled
from ssd_infer.engine.target import Target
from ssd_infer.errors import ConfigError, one_line
from ssd_infer.evaluation.bench import EvalContext
from ssd_infer.evaluation.strategies import as_dict, filled_in, untimed
from ssd_infer.evaluation.studies import Asked
from ssd_infer.strategies import registry as drafts
from ssd_infer.strategies.info import row_name
from ssd_infer.strategies.study import Sampling
from ssd_infer.tuning.budget import Deadline, OutOfTime, stopping
from ssd_infer.tuning.cell import Way, measure_cell, room_for
from ssd_infer.tuning.cell_report import cell_report

GREEDY = Sampling().greedy


@dataclass(frozen=True, slots=True)
class Cells:
    """What the measurement of a cell needs beside its rows; `where` names it in warnings."""

    bench: EvalContext
    asked: Sequence[Asked]
    deadline: Deadline
    search_seconds: float
    where: str

    def failed(self, name: str, reason: str) -> None:
        """Warn that somebody has no figures in this cell."""
        self.bench.notes.append(f"{name}: {self.where} was not measured: {reason}")


def measured(cell: Cells, rows: Sequence[FilledRow], batch: int) -> list[dict[str, Any]]:
    """Return the rows of one cell; a draft that fails, or has no time left, has none."""
    bench, target = cell.bench, cell.bench.target
    assert isinstance(target, Target)
    prompts = [rows[place % len(rows)].prompt for place in range(batch)]
    found = (_way(cell, target, one, prompts) for one in cell.asked)
    ways = [way for way in found if way is not None]
    settings = bench.settings
    filled = Prefilled(target, rows, batch, settings.max_new_tokens, room_for(ways))
    told = measure_cell(
        filled, ways, settings.max_new_tokens, settings.repeats, deadline=cell.deadline, fail=cell.failed
    )
    return cell_report(told, filled.slot_bytes, torch.finfo(target.dtype).bits >= 32)


def _way(cell: Cells, target: Target, one: Asked, prompts: list[list[int]]) -> Way | None:
    """Settle the parameters of a draft on the prompts of this cell; None where that fails or takes too long."""
    bench, strategy = cell.bench, drafts.get(one.info.name)
    given = bench.settings.draft_params if row_name(bench.settings.draft) == one.row else {}
    try:
        with stopping(bench.model, cell.deadline):
            raw = filled_in(strategy, given, cell.search_seconds)
            resolved = strategy.resolve(target, strategy.parse(raw, target), prompts, not GREEDY)
    except ConfigError:
        raise
    except OutOfTime:
        cell.failed(one.row, "the time limit came before its parameters were chosen")
        return None
    except Exception as error:  # noqa: BLE001  the other drafts go on
        cell.failed(one.row, one_line(error))
        return None
    resolved = untimed(resolved, bool(given))
    if resolved.params is None:
        return Way(one.row, note=resolved.note)
    shown, claimed = as_dict(resolved.params), strategy.claims(resolved.params)
    return Way(one.row, strategy, resolved.params, shown, resolved.note, claimed)

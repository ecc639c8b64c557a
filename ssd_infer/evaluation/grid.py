"""The exit layer × draft length grid: predicted everywhere, measured where the prediction is best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ssd_infer.evaluation.budget import Deadline, OutOfTime, stopping
from ssd_infer.evaluation.contenders import Contender, Sampling, ours
from ssd_infer.evaluation.measure import Unit, measure
from ssd_infer.evaluation.summary import scoreboard
from ssd_infer.strategies.early_exit.exit_calibration import ExitPrediction, ExitProfile

GAMMAS = (1, 2, 3, 4, 5, 6, 8, 12)
MOST_EXITS, MEASURED_CELLS, NEW_TOKENS = 10, 6, 40

Cell = dict[str, Any]


def shown_exits(exits: Sequence[int], best: int) -> list[int]:
    """Return at most ten exits to display: the shallow half of them all, deeper ones in even steps, and `best`."""
    if len(exits) <= MOST_EXITS:
        return list(exits)
    dense = MOST_EXITS // 2
    rest = list(exits[dense:])
    step = -(-len(rest) // (MOST_EXITS - dense - 1))
    return sorted({*exits[:dense], *rest[step - 1 :: step], best})


def predicted_cells(profile: ExitProfile) -> list[Cell]:
    """Return the predicted speedup of every displayed cell, the best of all among them."""
    best = profile.best()
    gammas = sorted({*GAMMAS, best.gamma})
    exits = shown_exits(list(profile.exits), best.exit_layer)
    return [_cell(profile.predict(exit_layer, gamma)) for exit_layer in exits for gamma in gammas]


def _cell(found: ExitPrediction) -> Cell:
    return {
        "exit_layer": found.exit_layer,
        "gamma": found.gamma,
        "speedup": found.speedup,
        "alpha": found.alpha,
        "tau": found.tau,
        "draft_ratio_c": found.c,
        "verify_ratio": found.verify_ratio,
    }


def measured_cells(
    model: nn.Module, cells: list[Cell], prompts: list[list[int]], device: torch.device, deadline: Deadline
) -> list[Cell]:
    """Time the most promising cells against our plain loop on calibration prompts, interleaved like the real run.

    Nothing is returned where `deadline` comes before two prompts were decoded by all.
    """
    greedy = Sampling()
    best = sorted(cells, key=lambda cell: -cell["speedup"])[:MEASURED_CELLS]
    contenders = [Contender("ssd_plain", "baseline", ours(model, None, {}, greedy))]
    for cell in best:
        params = {"exit_layer": cell["exit_layer"], "gamma": cell["gamma"]}
        contenders.append(
            Contender(
                f"{cell['exit_layer']},{cell['gamma']}", "strategy", ours(model, "early_exit", params, greedy)
            )
        )
    units = [Unit(index, "calibration", [prompt]) for index, prompt in enumerate(prompts)]
    try:
        with stopping(model, deadline):
            found = measure(contenders, units, 1, NEW_TOKENS, 0, device, deadline.part(0.9), blocks=1)
    except OutOfTime:
        return []
    board = scoreboard(found, contenders, greedy, 0)
    if board is None:
        return []
    return [
        {
            "exit_layer": cell["exit_layer"],
            "gamma": cell["gamma"],
            "speedup": board.ratio(contender.name).value,
        }
        for cell, contender in zip(best, contenders[1:], strict=True)
        if contender.failure is None
    ]

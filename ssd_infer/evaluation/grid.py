"""The exit layer × draft length grid: predicted everywhere, measured where the prediction is best."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ssd_infer.engine.calibrate import ExitProfile
from ssd_infer.evaluation.budget import Deadline
from ssd_infer.evaluation.contenders import Contender, Sampling, ours
from ssd_infer.evaluation.measure import Unit, measure
from ssd_infer.evaluation.summary import scoreboard

GAMMAS = (1, 2, 3, 4, 6, 8)
MOST_EXITS, MEASURED_CELLS, NEW_TOKENS = 10, 6, 40

Cell = dict[str, Any]


def predicted_cells(profile: ExitProfile) -> list[Cell]:
    """Return the predicted speedup of every displayed cell; deep models show at most ten exits."""
    exits = list(profile.exits)
    stride = -(-len(exits) // MOST_EXITS)
    shown = exits[::stride]
    return [
        {
            "exit_layer": exit_layer,
            "gamma": gamma,
            "speedup": found.speedup,
            "alpha": found.alpha,
            "tau": found.tau,
            "draft_ratio_c": found.c,
            "verify_ratio": found.verify_ratio,
        }
        for exit_layer in shown
        for gamma in GAMMAS
        for found in [profile.predict(exit_layer, gamma)]
    ]


def measured_cells(
    model: nn.Module, cells: list[Cell], prompts: list[list[int]], device: torch.device, deadline: Deadline
) -> list[Cell]:
    """Time the most promising cells against our plain loop on calibration prompts, interleaved like the real run."""
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
    found = measure(contenders, units, 1, NEW_TOKENS, 0, device, deadline)
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

"""The exit layer × draft length grid: predicted everywhere, measured where the prediction is best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ssd_infer.engine.target import Target
from ssd_infer.strategies.early_exit import EARLY_EXIT
from ssd_infer.strategies.early_exit.exit_calibration import ExitPrediction, ExitProfile, cached_profile
from ssd_infer.strategies.study import StudyContext, Trial
from ssd_infer.tuning.budget import OutOfTime, stopping

GAMMAS = (1, 2, 3, 4, 5, 6, 8, 12)
MOST_EXITS, MEASURED_CELLS, NEW_TOKENS = 10, 6, 40

Cell = dict[str, Any]


def study_grid(context: StudyContext) -> dict[str, list[Cell]]:
    """Return predicted and measured cells; nothing where the calibration took too long.

    The calibration, which the choice of parameters needs too, may go on until that must be done, what is measured
    beyond it until the study's own deadline.
    """
    target = context.target
    if not isinstance(target, Target):
        return {}
    context.say("calibrating early exits")
    try:
        with stopping(target.model, context.calibrated):
            cells = predicted_cells(cached_profile(target, context.calibration, do_sample=False))
    except OutOfTime:
        context.notes.append("the time limit left out the grid of exits and draft lengths")
        return {}
    if not cells or not context.settings.grid or context.deadline.passed:
        return {"predicted": cells, "measured": []} if cells else {}
    context.say("measuring the most promising exits and draft lengths")
    return {"predicted": cells, "measured": measured_cells(context, cells)}


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


def measured_cells(context: StudyContext, cells: list[Cell]) -> list[Cell]:
    """Time the most promising cells against plain decoding on calibration prompts; nothing where time ran out."""
    best = sorted(cells, key=lambda cell: -cell["speedup"])[:MEASURED_CELLS]
    places = [{"exit_layer": cell["exit_layer"], "gamma": cell["gamma"]} for cell in best]
    trials = [Trial(EARLY_EXIT.name, place) for place in places]
    found = context.time_trials(trials, NEW_TOKENS, context.deadline)
    return [
        {**place, "speedup": speedup}
        for place, speedup in zip(places, found, strict=bool(found))
        if speedup is not None
    ]

"""What the parts of a recognition cost on this machine, for predictions of speed."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from ssd_infer.families.speech.utterances import Utterance
from ssd_infer.strategies.ctc_draft.ctc_params import parse
from ssd_infer.strategies.ctc_draft.gate_calibration import Costs
from ssd_infer.strategies.ctc_draft.recognise import recognise

COST_UTTERANCES = 12


def measure_costs(model: Any, processor: Any, dev: Sequence[Utterance]) -> Costs:
    """Return what encoding, draft, verify pass and decoder step cost at batch size 1: medians in seconds."""
    params = parse("ctc_draft", {"theta_ctc": None, "theta_lm": 0.0}, int(model.config.vocab_size))
    checked, alone = [], []
    for item in list(dev[:COST_UTTERANCES]) * 2:
        checked.append(recognise(model, processor, [item.samples], "ctc_draft", params)[0])
        alone.append(recognise(model, processor, [item.samples], None)[0])
    half = len(alone) // 2  # the first pass over them warms up
    seconds = [run.timer.seconds for run in checked[half:]]
    steps = [run.timer.seconds["fallback"] / run.work.forwards for run in alone[half:]]
    return Costs(
        median(entry["features"] + entry["encode"] for entry in seconds),
        median(entry["ctc"] for entry in seconds),
        median(entry["verify"] for entry in seconds),
        median(steps),
    )

"""Every DRAFT leaves the output of stepwise decoding as it is, in float64 and without exception."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
import torch

import ssd_infer
from ssd_infer.evaluation.losslessness import judge_greedy
from ssd_infer.families.diffusion import decoding
from ssd_infer.families.diffusion.canvases import FullMemory, _locate, run_canvases
from ssd_infer.families.diffusion.draft import Source, Standing
from ssd_infer.families.diffusion.memory import Lists, Pass
from ssd_infer.families.diffusion.state import State
from ssd_infer.strategies.fewer_steps.drafts import DRAFTERS, StateDrafter
from ssd_infer.strategies.fewer_steps.ssd_chain import SSDChain
from tests.families.diffusion.support import BIDIRECTIONAL, BLOCK_CAUSAL, MASK, begin, build, decoded, prompts

MODELS = 40
SAMPLERS = [
    ("confidence", 0.0),
    ("left_to_right", 0.0),
    ("confidence", 1.0),
    ("left_to_right", 0.7),
]


class RandomDraft(StateDrafter):
    """Foresee states that have nothing to do with the model, some of them impossible."""

    name: ClassVar[str] = "random"

    def __init__(self, gamma: int) -> None:
        super().__init__(gamma)
        self.random = random.Random(gamma)

    def propose(self, standings: Sequence[Standing], source: Source) -> list[list[State]]:
        return [[standing.upcoming, *self._states(standing)] for standing in standings]

    def _states(self, standing: Standing) -> list[State]:
        found: dict[State, None] = {}
        state = standing.upcoming
        for _ in range(self.gamma):
            masked = standing.canvas.masked(state)
            if state.ended or state.start != standing.state.start or len(masked) < 2:
                break
            pick = [(self.random.choice(masked), self.random.randrange(MASK))]
            state = standing.canvas.after(state, pick, state.clock + 1)
            found[state] = None
        return list(found)


@pytest.mark.parametrize(("order", "temperature"), SAMPLERS)
def test_every_draft_equals_stepwise_on_forty_random_models(order: str, temperature: float) -> None:
    for seed in range(MODELS):
        block_causal = bool(seed % 2)
        objective, layers = (BLOCK_CAUSAL, 2) if block_causal else (BIDIRECTIONAL, 1)
        model = build(seed, objective, 8 if block_causal else 4, layers=layers)
        rows = prompts((3, 6), seed)
        sampler = {"order": order}
        stepwise = decoded(model, rows, 12, sampler, None, temperature, seed)
        names = list(DRAFTERS)
        for place, gamma in enumerate((1, 3, 7)):
            drafter = DRAFTERS[names[(seed + place) % len(names)]](gamma)
            assert decoded(model, rows, 12, sampler, drafter, temperature, seed) == stepwise, drafter.name
        drafter = RandomDraft((1, 3, 7)[seed % 3])
        assert decoded(model, rows, 12, sampler, drafter, temperature, seed) == stepwise


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("gamma", [1, 3, 7])
def test_each_draft_by_name_through_generate(name: str, gamma: int) -> None:
    model = build(1, block=8)
    rows = prompts((1, 7, 12))
    arguments: dict[str, Any] = {"max_new_tokens": 20, "seed": 4}
    for sampling in ({}, {"do_sample": True, "temperature": 0.8}):
        plain = ssd_infer.generate(model, rows, **arguments, **sampling)
        params: dict[str, Any] = {"drafter": name, "gamma": gamma}
        if name == "spiffy":
            params["graph"] = [[[0, 0]], [[0, 0], [0, 0]], [[1, 0]], [[0, 1]]]
        out = ssd_infer.generate(
            model, rows, draft="fewer_steps", draft_params=params, **arguments, **sampling
        )
        assert out.sequences == plain.sequences
        assert out.draft == "fewer_steps"
        assert out.draft_params["drafter"] == name


@pytest.mark.parametrize(
    ("objective", "cache", "layout"),
    [
        (BLOCK_CAUSAL, "exact", "tree"),
        (BLOCK_CAUSAL, "exact", "batch"),
        (BLOCK_CAUSAL, "none", "tree"),
        (BIDIRECTIONAL, "none", "tree"),
        (BIDIRECTIONAL, "dual", "tree"),
    ],
)
@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("order", ["confidence", "left_to_right", "random", "margin", "entropy"])
def test_every_memory_layout_order_and_shift(
    objective: str, cache: str, layout: str, shift: bool, order: str
) -> None:
    model = build(3, objective, 4, logit_shift=shift)
    rows = prompts((1, 5, 10))
    sampler = {"order": order, "cache": cache, "layout": layout}
    stepwise = decoded(model, rows, 12, sampler)
    assert decoded(model, rows, 12, sampler, SSDChain(3)) == stepwise
    alone = [decoded(model, [row], 12, sampler, SSDChain(2))[0] for row in rows]
    assert (
        alone == stepwise if order != "random" else alone[0] == stepwise[0]
    )  # rows draw from seeds of their own


@pytest.mark.parametrize(
    "sampler",
    [
        {"steps": 8},
        {"steps": 8, "order": "left_to_right"},
        {"rule": "threshold", "threshold": 0.3},
        {"rule": "ancestral", "steps": 6},
        {"rule": "ancestral"},
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafts_of_samplers_that_reveal_many_at_once(sampler: dict[str, Any], temperature: float) -> None:
    for objective in (BLOCK_CAUSAL, BIDIRECTIONAL):
        model = build(5, objective, 8)
        rows = prompts((8, 11))
        stepwise = decoded(model, rows, 16, sampler, None, temperature)
        for drafter in (SSDChain(3), DRAFTERS["ssd_tree"](3), DRAFTERS["coarse_draft"](4)):
            assert decoded(model, rows, 16, sampler, drafter, temperature) == stepwise


class OneRow(FullMemory):
    """The wrong verifier: all drafts lie in one row, so each is judged with the later ones in sight."""

    def evaluate(self, lists: Lists) -> Pass:
        inside = [[state for state in states if state.start == states[0].start] for states in lists]
        hidden = run_canvases(self, [(row, states[-1]) for row, states in enumerate(inside)], None)
        found = Pass(hidden.flatten(0, 1), [[] for _ in lists], [[] for _ in lists], rows=len(lists))
        for row, states in enumerate(lists):
            for state in states:
                _locate(found, row, row * hidden.shape[1] + states[0].start, state, self.denoiser.shift)
        return found


def test_the_wrong_verifier_fails_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs: dict[str, dict[tuple[int, int, int], list[int]]] = {"stepwise": {}, "one row": {}, "right": {}}
    for seed in range(MODELS):
        model, rows = build(seed, block=8), prompts((5,), seed)
        sampler = {"order": "left_to_right", "cache": "none"}
        outputs["stepwise"][0, seed, 0] = decoded(model, rows, 16, sampler)[0]
        outputs["right"][0, seed, 0] = decoded(model, rows, 16, sampler, SSDChain(3))[0]
        with monkeypatch.context() as patch:
            patch.setattr(decoding, "FullMemory", OneRow)
            outputs["one row"][0, seed, 0] = decoded(model, rows, 16, sampler, SSDChain(3))[0]
    reference = {"stepwise": outputs["stepwise"]}
    assert judge_greedy(outputs["right"], reference).verdict == "pass"
    caught = judge_greedy(outputs["one row"], reference)
    assert caught.verdict == "fail"
    assert caught.extra["equal"] < MODELS


def test_calls_never_exceed_stepwise_by_more_than_one() -> None:
    for seed in range(6):
        model, rows = build(seed, block=8), prompts((8,), seed)
        counts = []
        for drafter in (None, SSDChain(7), DRAFTERS["ssd_tree"](5)):
            from ssd_infer.families.diffusion.block_loop import decode

            run = begin(model, rows, 16, {"order": "left_to_right"}, drafter)
            decode(run)
            counts.append(run.stats.total.forwards["target"])
        assert max(counts[1:]) <= counts[0] + 1


def test_float32_outputs_are_equal_too() -> None:
    for seed in range(8):
        model, rows = build(seed, block=8, dtype=torch.float32), prompts((9, 4), seed)
        for order in ("confidence", "left_to_right"):
            stepwise = decoded(model, rows, 16, {"order": order})
            assert decoded(model, rows, 16, {"order": order}, SSDChain(7)) == stepwise

"""Exactness at batch 1 and in ragged batches: a draft that is right alone and wrong in company fails its report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ssd_infer.config.evaluation import EvalSettings
from ssd_infer.engine.session import Proposal
from ssd_infer.evaluation import evaluate
from ssd_infer.evaluation.batch_exactness import (
    LONGEST_PROMPT,
    MOST_SECONDS,
    ROWS,
    SHARE,
    Case,
    Check,
    Known,
    batch_deadline,
    plan,
    ragged_prompts,
    run_checks,
    spans,
)
from ssd_infer.evaluation.batch_text import greedy_in_batches, law_of_groups, ragged_rows
from ssd_infer.evaluation.contenders import Contender, ours
from ssd_infer.evaluation.distribution import SETTINGS, judge_sampling
from ssd_infer.evaluation.transformers_side import hf_baseline
from ssd_infer.report.rows import exit_code
from ssd_infer.strategies.early_exit.early_exit import EarlyExit
from ssd_infer.strategies.info import StrategyInfo
from ssd_infer.strategies.study import Sampling
from ssd_infer.tuning.budget import Budget, Deadline
from tests.conftest import ModelFactory, build_model
from tests.registered import know_only

FOREVER = Budget(0.0).deadline(1.0)
NOW = Deadline(0.0)
PROMPTS = [[5 + (7 * i * j + j) % 90 for j in range(12)] for i in range(1, 6)]
PARAMS = {"exit_layer": 1, "gamma": 3}


class WrongInCompany(EarlyExit):
    """Right at batch 1; in a ragged batch every row hands over the exit states of the last one."""

    info = StrategyInfo("early_exit+company", "causal", "skip_layer", order=20)

    def propose(self, limit: int) -> Proposal:
        proposal = super().propose(limit)
        if len(set(self.session.lengths)) > 1 and proposal.hidden is not None:
            proposal.hidden[:-1] = proposal.hidden[-1:].clone()
        return proposal


class WrongAtTheEnd(EarlyExit):
    """Right until the budget cuts a draft of a batch: what follows the cut was made for the token before it."""

    info = StrategyInfo("early_exit+end", "causal", "skip_layer", order=20)

    def propose(self, limit: int) -> Proposal:
        proposal = super().propose(limit)
        if limit < self.gamma and len(self.session.lengths) > 1 and proposal.hidden is not None:
            proposal.hidden[:, -1] = 0
        return proposal


class NoBatches(EarlyExit):
    """Right at batch 1; raises in a batch."""

    info = StrategyInfo("early_exit+broken", "causal", "skip_layer", order=20)

    def propose(self, limit: int) -> Proposal:
        if len(self.session.lengths) > 1:
            raise RuntimeError("no batches here")
        return super().propose(limit)


WRONG = {"company": WrongInCompany, "end": WrongAtTheEnd, "broken": NoBatches}


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("early_exit", "early_exit+ngram", "ngram")
    know_only(monkeypatch, names, *WRONG.values())


def strategy(draft: str, **changes: Any) -> Contender:
    return Contender(draft, "strategy", lambda *_: ([], None), draft=draft, params=dict(PARAMS), **changes)


def judged(model: Any, *items: Contender, deadline: Deadline = FOREVER, tokens: int = 16) -> dict[str, Any]:
    return greedy_in_batches(model, [hf_baseline(model, Sampling()), *items], PROMPTS, tokens, deadline)


def test_a_right_draft_passes_and_says_what_was_compared(tiny_model: ModelFactory) -> None:
    found = judged(tiny_model(), strategy("early_exit"))["early_exit"]
    assert found.verdict == "pass"
    assert "at batch 1 and 4 (ragged), budgets 1 to 16, with and without end marks" in found.detail
    assert "ssd_plain and transformers_generate" in found.detail
    facts = found.extra["batches"]
    assert facts["equal"] == facts["outputs"] > 60
    assert {1, PARAMS["gamma"] + 1, 2 * PARAMS["gamma"] + 3, 16} <= set(facts["budgets"])


@pytest.mark.parametrize("name", ["company", "end"])
def test_a_draft_that_is_right_alone_fails_with_its_first_divergence(
    tiny_model: ModelFactory, name: str
) -> None:
    model, draft = tiny_model(), WRONG[name].info.name
    plain = ours(model, None, {}, Sampling())
    alone = ours(model, draft, PARAMS, Sampling())
    for prompt in PROMPTS:
        for budget in (3, 7, 16):
            assert alone([prompt], budget, 0)[0] == plain([prompt], budget, 0)[0]
    found = judged(model, strategy(draft))[draft]
    assert found.verdict == "fail"
    assert "batch 4, budget" in found.detail
    assert "differs from ssd_plain, first at token" in found.detail
    assert found.extra["batches"]["first_difference"] in found.detail


def test_a_draft_that_raises_in_a_batch_fails_with_the_reason(tiny_model: ModelFactory) -> None:
    draft = WRONG["broken"].info.name
    found = judged(tiny_model(), strategy(draft))[draft]
    assert found.verdict == "fail"
    assert "no batches here" in found.detail


def test_end_marks_that_occur_are_heeded(tiny_model: ModelFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft that talks past an end mark is found, though the model's own marks never occur."""
    from ssd_infer.evaluation import batch_text

    right = ours

    def deaf(model: Any, draft: str | None, params: Any, sampling: Any, eos: Any = None) -> Any:
        return right(model, draft, params, sampling, eos if draft is None else [])

    monkeypatch.setattr(batch_text, "ours", deaf)
    found = judged(tiny_model(eos_token_id=2), strategy("early_exit"))["early_exit"]
    assert found.verdict == "fail"
    assert "end mark" in found.extra["batches"]["first_difference"]
    assert "no end mark" not in found.extra["batches"]["first_difference"]


def test_transformers_is_a_reference_of_its_own(tiny_model: ModelFactory) -> None:
    model = tiny_model()
    theirs = hf_baseline(model, Sampling())
    right = theirs.decode

    def other(prompts: Any, tokens: int, seed: int) -> Any:
        rows, stats = right(prompts, tokens, seed)
        return [[*row[:5], (row[5] + 1) % 97, *row[6:]] for row in rows], stats

    theirs.decode = other
    found = greedy_in_batches(model, [theirs, strategy("early_exit")], PROMPTS, 16, FOREVER)["early_exit"]
    assert found.verdict == "fail"
    assert "differs from transformers_generate, first at token 5" in found.detail


def test_their_row_that_stopped_early_counts_up_to_there(tiny_model: ModelFactory) -> None:
    model = tiny_model()
    said = ours(model, None, {}, Sampling(), eos=[])([ragged_rows(model, PROMPTS, 16)[1]], 16, 0)[0][0]
    stopping = tiny_model(eos_token_id=said[4])
    found = judged(stopping, strategy("early_exit"))["early_exit"]
    assert found.verdict == "pass", found.detail


@pytest.mark.parametrize(("draft", "verdict"), [("early_exit", "pass"), ("early_exit+company", "fail")])
def test_lower_precision_excuses_rounding_only(tiny_model: ModelFactory, draft: str, verdict: str) -> None:
    model: Any = tiny_model()
    found = judged(model.to(torch.bfloat16), strategy(draft))[draft]
    assert found.verdict == verdict, found.detail


def test_rows_that_decode_plainly_share_one_check_and_lossy_rows_have_none(tiny_model: ModelFactory) -> None:
    wrong = WRONG["company"].info.name
    first, second = strategy(wrong, plain=True), strategy("early_exit", plain=True)
    found = judged(tiny_model(), first, second, strategy("early_exit+end", claimed=False))
    assert found[wrong] == found["early_exit"]
    assert found[wrong].verdict == "pass"
    assert set(found) == {wrong, "early_exit"}


def test_without_time_nothing_is_run_and_that_is_said(tiny_model: ModelFactory) -> None:
    found = judged(tiny_model(), strategy("early_exit"), deadline=NOW)["early_exit"]
    assert found.verdict == "not_run"
    assert "not run for lack of time" in found.detail


def test_time_that_ends_midway_leaves_the_dear_cases_out_of_all_alike() -> None:
    ticks = iter([0.0] * 9 + [9.0] * 99)
    late = Deadline(5.0, lambda: next(ticks))
    cases = plan([1, 4, 9], [(7,)])
    checks = {name: Check(lambda case: [[1]] * len(case.rows), cases) for name in ("one", "two")}
    found = run_checks(checks, lambda case: {"plain": [Known([1])] * len(case.rows)}, lambda *_: False, late)
    done = {name: result.extra["batches"]["decodings"] for name, result in found.items()}
    assert 0 < done["one"] < len(cases)
    assert done["one"] - done["two"] in (0, 1)
    left = found["two"].extra["batches"]["left_out"]
    assert left[-1] == "batch 1, budget 9, end mark 7"
    assert "not run for lack of time: " in found["two"].detail
    assert found["one"].verdict == "pass"


def test_a_case_that_would_outlast_the_time_is_not_begun() -> None:
    check = Check(lambda case: [[1]], [], pace=2.0)
    check.run(Case((0,), 9), lambda _: {"plain": [Known([1])]}, lambda *_: False, Deadline(10.0, lambda: 0.0))
    assert [case.budget for case in check.left_out] == [9]


def test_the_share_of_the_limit() -> None:
    clock = iter([100.0, *[130.0] * 9]).__next__
    assert batch_deadline(Budget(10.0, clock)).left == pytest.approx(600 * SHARE)
    assert batch_deadline(Budget(0.0)).left == pytest.approx(MOST_SECONDS, abs=1)


@pytest.mark.parametrize("longest", [1, 4, 8, 30, 500])
def test_the_batch_is_ragged_whatever_the_prompts(tiny_model: ModelFactory, longest: int) -> None:
    prompts = [[3 + (i + j) % 90 for j in range(longest)] for i in range(3)]
    lengths = [len(row) for row in ragged_prompts(prompts)]
    assert len(set(lengths)) == ROWS
    assert max(lengths) == max(4, min(longest, LONGEST_PROMPT))
    own = ragged_rows(tiny_model(), prompts, 16)
    assert len({len(row) for row in own}) > 1
    assert max(map(len, own)) <= max(4, min(longest, LONGEST_PROMPT)) + 8


def test_spans() -> None:
    assert spans([1, 4, 5, 6, 9, 24, 25]) == "1, 4 to 6, 9 and 24, 25"
    assert spans([7]) == "7"


@pytest.mark.parametrize("alone", [False, True])
def test_sampled_rows_of_a_ragged_batch_obey_the_law(tiny_model: ModelFactory, alone: bool) -> None:
    model = tiny_model()
    rows = ragged_rows(model, PROMPTS, 16)
    groups = [rows, *([row] for row in rows)] if alone else [rows]
    right, wrong = (
        law_of_groups(model, strategy(draft), Sampling(1.0), groups, 24, 0)
        for draft in ("early_exit", WRONG["company"].info.name)
    )
    assert right.verdict == "pass", right.detail
    assert right.detail.startswith("ragged batch of 4" + (" and batch 1" if alone else ""))
    assert wrong.verdict == "fail", wrong.detail


def test_enumeration_draws_in_ragged_batches(tiny_model: ModelFactory) -> None:
    """A law that holds in even batches only is found."""
    model, context = tiny_model(), [5, 9, 40, 41, 5, 9, 40, 12]
    for draft, verdict in (("early_exit", "pass"), (WRONG["company"].info.name, "fail")):
        decodes = [(how, ours(model, draft, PARAMS, how, eos=-1)) for how in SETTINGS]
        found = judge_sampling(model, decodes, context, FOREVER)
        assert found.verdict == verdict, found.detail
        assert "ragged" in found.detail


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    build_model(layers=3, eos_token_id=2).save_pretrained(folder)
    (folder / "prompts.jsonl").write_text("\n".join(json.dumps({"ids": ids}) for ids in PROMPTS))
    return folder


def report(checkpoint: Path, out: Path, draft: str, **changes: Any) -> dict[str, Any]:
    wanted: dict[str, Any] = {
        "checkpoint": str(checkpoint),
        "tasks": [f"file:{checkpoint}/prompts.jsonl"],
        "out": str(out),
        "samples": 3,
        "repeats": 1,
        "max_new_tokens": 10,
        "threads": 1,
        "device": "cpu",
        "grid": False,
        "draft": draft,
        "draft_params": dict(PARAMS),
    }
    return evaluate(EvalSettings(**(wanted | changes)))


def test_a_report_timed_at_batch_1_fails_a_draft_that_is_wrong_in_ragged_batches(
    checkpoint: Path, tmp_path: Path
) -> None:
    made = report(checkpoint, tmp_path, "early_exit:company")
    for name in ("early_exit:company", "early_exit:company:t1"):
        row = next(row for row in made["strategies"] if row["name"] == name)
        assert row["lossless"]["verdict"] == "fail", row["lossless"]["detail"]
    greedy = next(row for row in made["strategies"] if row["name"] == "early_exit:company")
    assert greedy["lossless"]["detail"].startswith("greedy: 3 of 3 outputs equal"), "timed runs saw nothing"
    assert "row 0 differs from ssd_plain, first at token" in greedy["lossless"]["detail"]
    assert exit_code(made) == 1
    assert made["verdict"]["best_strategy"] is None
    assert any("early_exit:company is NOT lossless" in line for line in made["verdict"]["warnings"])


def test_a_report_of_a_right_draft_says_what_was_compared(checkpoint: Path, tmp_path: Path) -> None:
    made = report(checkpoint, tmp_path, "early_exit", batch_size=2)
    rows = {row["name"]: row["lossless"] for row in made["strategies"]}
    assert rows["early_exit"]["extra"]["batches"]["batch_sizes"] == [1, 4]
    assert "ragged batch of 4 and batch 1" in rows["early_exit:t1"]["detail"]
    assert exit_code(made) == 0


def test_a_law_without_time_is_not_run_and_that_is_said(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ssd_infer.evaluation.causal import judging

    monkeypatch.setattr(judging, "batch_deadline", lambda _: NOW)
    made = report(checkpoint, tmp_path, "early_exit:company")
    details = {row["name"]: row["lossless"]["detail"] for row in made["strategies"]}
    assert "ragged batch: not run for lack of time" in details["early_exit:company:t1"]
    assert "ragged batch and several budgets: not run for lack of time" in details["early_exit:company"]

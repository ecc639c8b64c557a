"""Cells of batch × context: one cache for all contenders, the same tokens from each, and what is reported of them."""

from __future__ import annotations

import mmap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import ssd_infer
from ssd_infer.__main__ import exit_code
from ssd_infer.config.evaluation import EvalSettings
from ssd_infer.corpus import Task
from ssd_infer.engine.target import Target
from ssd_infer.evaluation.strategies import select_candidates
from ssd_infer.evaluation.studies import Findings
from ssd_infer.strategies.base import Resolved
from ssd_infer.strategies.sparse_attention import prefilled, sweep
from ssd_infer.strategies.sparse_attention import sparse_attention as strategy
from ssd_infer.strategies.sparse_attention.long_context import PLAIN, THEIRS, cell_report, measure_cell
from ssd_infer.strategies.sparse_attention.prefilled import Prefilled, prefill, prefill_once, room_for
from ssd_infer.strategies.study import Sampling
from ssd_infer.tuning.budget import Budget
from ssd_infer.tuning.peak import PeakMemory
from tests.conftest import ModelFactory
from tests.scripts.load import load_script

NEW = 6
DRAFTS: dict[str, dict[str, Any]] = {
    "pillar": {"selector": "pillar", "ratio": 0.2, "min_budget": 8, "gamma": 3, "cold_start": "prompt"},
    "snapkv": {"selector": "snapkv", "ratio": 0.2, "min_budget": 8, "gamma": 3},
    "balanced": {"selector": "vegas", "ratio": 0.2, "min_budget": 8, "gamma": 3, "phases": "balanced"},
}


def prompts_of(count: int, length: int = 60) -> list[list[int]]:
    generator = torch.Generator().manual_seed(4)
    return torch.randint(2, 97, (count, length), generator=generator).tolist()


def test_every_contender_goes_on_from_the_same_untouched_rows(tiny_model: ModelFactory) -> None:
    model = tiny_model(layers=3)
    target, prompts = Target.of(model), prompts_of(2)
    filled = Prefilled(target, [prefill(target, prompt) for prompt in prompts], 3, NEW)
    assert filled.prompts == [*prompts, prompts[0]]
    before = [part[:, :, :60].clone() for layer in range(3) for part in filled.cache.held(layer)]
    found = {row.name: row for row in measure_cell(strategy.SparseAttention, filled, DRAFTS, NEW, repeats=2)}
    after = [part[:, :, :60] for layer in range(3) for part in filled.cache.held(layer)]
    assert all(torch.equal(left, right) for left, right in zip(before, after, strict=True))
    assert set(found) == {PLAIN, THEIRS, *DRAFTS}
    wanted = ssd_infer.generate(model, [torch.tensor(row) for row in filled.prompts], max_new_tokens=NEW + 1)
    for row in found.values():
        assert [tokens[:NEW] for tokens in row.tokens] == [tokens[:NEW] for tokens in wanted.sequences]
        assert len(row.seconds) == len(row.emitted) == (1 if row.name == THEIRS else 2)
        assert row.rate > 0
    assert found["pillar"].alpha is not None
    assert found["pillar"].params["cold_start"] == "prompt"


def test_prompts_are_heard_before_the_first_draft(tiny_model: ModelFactory) -> None:
    """Without the scores of the prefill the first round would be dense, and would read whole rows."""
    target = Target.of(_model := tiny_model())
    filled = Prefilled(target, [prefill(target, prompt) for prompt in prompts_of(2)], 2, NEW)
    (row,) = (
        row
        for row in measure_cell(
            strategy.SparseAttention, filled, {"pillar": DRAFTS["pillar"]}, NEW, 1, their_tokens=0
        )
        if row.name == "pillar"
    )
    rounds = len(row.report["per_position"]) > 0
    assert rounds
    assert row.report["slots_per_token_draft"] < 3 * 60 / 2


def test_a_cell_reports_ratios_and_verdicts(tiny_model: ModelFactory) -> None:
    target = Target.of(_model := tiny_model())
    filled = Prefilled(target, [prefill(target, prompt) for prompt in prompts_of(2)], 2, NEW)
    found = measure_cell(
        strategy.SparseAttention, filled, {"pillar": DRAFTS["pillar"]}, NEW, 1, their_tokens=NEW // 2
    )
    plain, theirs, pillar = cell_report(found, filled.slot_bytes, strict=True)
    assert plain["verdict"] == theirs["verdict"] == pillar["verdict"] == "pass"
    fastest = max(plain["tokens_per_second"], theirs["tokens_per_second"])
    assert pillar["speedup"] == pytest.approx(pillar["tokens_per_second"] / fastest)
    assert plain["kv_bytes_per_token"] == 60 * filled.slot_bytes == 60 * 4 * 2 * 2 * 8 * 4
    found[2].tokens[1][-1] += 1
    assert [row["verdict"] for row in cell_report(found, 1, strict=True)] == ["pass", "pass", "fail"]
    assert cell_report(found, 1, strict=False)[2]["verdict"] == "not_run"


def test_prefilled_rows_are_kept_for_later_runs(
    tiny_model: ModelFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, (prompt, other) = Target.of(_model := tiny_model()), prompts_of(2)
    first = prefill_once(target, prompt, tmp_path / "rows")
    monkeypatch.setattr(prefilled, "prefill", lambda *_: pytest.fail("prefilled twice"))
    again = prefill_once(target, prompt, tmp_path / "rows")
    assert again.first == first.first
    assert torch.equal(again.slots, first.slots)
    with pytest.raises(pytest.fail.Exception):
        prefill_once(target, other, tmp_path / "rows")
    with pytest.raises(pytest.fail.Exception):
        prefill_once(Target.of(_twin := tiny_model(seed=1)), prompt, tmp_path / "rows")
    with torch.no_grad():
        _model.get_parameter("model.layers.1.mlp.down_proj.weight").view(-1)[-1] += 1
    with pytest.raises(pytest.fail.Exception):
        prefill_once(target, prompt, tmp_path / "rows")


def test_peak_memory_sees_what_is_gone_again() -> None:
    with PeakMemory(torch.device("cpu")) as idle:
        pass
    with (
        PeakMemory(torch.device("cpu")) as peak,
        mmap.mmap(
            -1, 64 << 20
        ) as fresh,  # pages of its own: an allocator may have some left from earlier tests
    ):
        fresh.write(bytes(1) * (64 << 20))
    if idle.bytes is None or peak.bytes is None:
        pytest.skip("this system does not tell peak memory")
    assert peak.bytes - idle.bytes > 48 << 20


def context_of(model: Any, **changes: Any) -> Any:
    """Return as much of a study's context as a sweep asks for."""
    settings = EvalSettings(checkpoint="-", contexts=[40], batches=[1, 3], max_new_tokens=NEW, repeats=1)
    parts = {
        "model": model,
        "settings": settings,
        "target": Target.of(model),
        "tokenizer": object(),
        "deadline": Budget(0).deadline(1),
        "notes": [],
        "say": lambda _: None,
    }
    return SimpleNamespace(**(parts | changes))


def test_a_sweep_has_every_cell_and_acceptance_by_budget(
    tiny_model: ModelFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(_names: Any, _tokenizer: Any, count: int, context: int, _seed: int) -> list[Task]:
        return [Task("long_continuation", prompts_of(count, context))]

    monkeypatch.setattr(sweep, "build_tasks", build)
    found = sweep.sparse_sweep(strategy.SparseAttention, context_of(tiny_model()))
    assert [(cell["batch"], cell["name"]) for cell in found["cells"]] == [
        (batch, name) for batch in (1, 3) for name in (PLAIN, THEIRS, "sparse_attention")
    ]
    assert [row["params"]["ratio"] for row in found["budgets"]] == list(sweep.RATIOS)
    reads = [row["kv_bytes_per_token"] * row["tau"] for row in found["budgets"]]
    assert reads == sorted(reads)
    hurried = context_of(tiny_model(), deadline=Budget(1e-9).deadline(1))
    short = sweep.sparse_sweep(strategy.SparseAttention, hurried)
    assert len(short["cells"]) == 3
    assert hurried.notes == ["the time limit left out batch 3 at 40 tokens of context"]


def test_a_sweep_that_cannot_be_made_says_why(tiny_model: ModelFactory) -> None:
    model = tiny_model()
    assert (
        sweep.sparse_sweep(strategy.SparseAttention, context_of(model, settings=EvalSettings(checkpoint="-")))
        == {}
    )
    assert (
        "no tokenizer"
        in sweep.sparse_sweep(strategy.SparseAttention, context_of(model, tokenizer=None))["reason"]
    )
    assert sweep.sparse_sweep(strategy.SparseAttention, context_of(model, target="no layers")) == {
        "reason": "no layers"
    }
    other = EvalSettings(checkpoint="-", contexts=[40], draft="ngram")
    assert (
        "draft=ngram only"
        in sweep.sparse_sweep(strategy.SparseAttention, context_of(model, settings=other))["reason"]
    )
    windowed = tiny_model("mistral", sliding_window=16)
    assert "sliding window" in sweep.sparse_sweep(strategy.SparseAttention, context_of(windowed))["reason"]


@pytest.mark.parametrize(
    ("status", "after"), [("ok", "ok"), ("not_applicable", "failed"), ("failed", "failed")]
)
def test_a_cell_that_changed_the_output_fails_its_row(status: str, after: str) -> None:
    def cells(*named: tuple[str, str]) -> Any:
        return {"cells": [{"name": n, "batch": 4, "context": 64, "verdict": v} for n, v in named]}

    row: dict[str, Any] = {
        "name": "sparse_attention",
        "status": status,
        "lossless": {"claimed": True, "verdict": "pass", "detail": ""},
        "extra": {},
    }
    assert sweep.sweep_fault(cells(("transformers", "fail"), ("sparse_attention", "pass"))) is None
    assert sweep.sweep_fault({"reason": "no tokenizer"}) is None
    wrong = cells(("plain", "pass"), ("sparse_attention", "fail"))
    fault = sweep.sweep_fault(wrong)
    assert fault is not None
    Findings({"sparse_attention": {"sweep": wrong}}).attach(row)
    assert row["lossless"]["verdict"] == "pass"
    Findings({"sparse_attention": {"sweep": wrong}}, {"sparse_attention": fault}).attach(row)
    assert (row["lossless"]["verdict"], row["status"]) == ("fail", after)
    assert len(row["extra"]["sweep"]["cells"]) == 2
    assert exit_code({"strategies": [row]}) == 1
    assert "batch 4 at 64 tokens" in row["lossless"]["detail"]


def test_a_sweep_that_fails_costs_the_report_nothing(
    tiny_model: ModelFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(_names: Any, _tokenizer: Any, count: int, context: int, _seed: int) -> list[Task]:
        return [Task("long_continuation", prompts_of(count, context))]

    def short_of_memory(kind: Any, filled: Prefilled, *arguments: Any, **more: Any) -> Any:
        if len(filled.rows) == 3:
            raise RuntimeError("not enough memory")
        return measure_cell(kind, filled, *arguments, **more)

    monkeypatch.setattr(sweep, "build_tasks", build)
    monkeypatch.setattr(sweep, "measure_cell", short_of_memory)
    context = context_of(tiny_model())
    found = sweep.sparse_sweep(strategy.SparseAttention, context)
    assert {cell["batch"] for cell in found["cells"]} == {1}
    assert found["budgets"]
    rule = "the sweep at batch 3 and 40 tokens of context failed: RuntimeError: not enough memory"
    assert context.notes == [rule]


@pytest.mark.parametrize("length", [1, 5])
@pytest.mark.parametrize("selector", ["pillar", "vegas", "snapkv"])
def test_contexts_shorter_than_what_is_heard_of_them(
    tiny_model: ModelFactory, selector: str, length: int
) -> None:
    model = tiny_model()
    target = Target.of(model)
    filled = Prefilled(target, [prefill(target, row) for row in prompts_of(2, length)], 3, NEW)
    params = {"selector": selector, "ratio": 0.1, "min_budget": 1, "gamma": 3, "cold_start": "prompt"}
    cell = measure_cell(strategy.SparseAttention, filled, {"draft": params}, NEW, 1, their_tokens=0)
    assert [row["verdict"] for row in cell_report(cell, filled.slot_bytes, strict=True)] == ["pass"] * 2


def test_there_is_room_for_the_longest_draft(tiny_model: ModelFactory) -> None:
    model = tiny_model()
    target, params = Target.of(model), {"gamma": 100, "ratio": 1.0}
    rows = [prefill(target, row) for row in prompts_of(2)]
    filled = Prefilled(target, rows, 2, NEW, room_for([params, {"gamma": "auto"}, {}]))
    cell = measure_cell(strategy.SparseAttention, filled, {"draft": params}, NEW, 1, their_tokens=0)
    assert [row["verdict"] for row in cell_report(cell, filled.slot_bytes, strict=True)] == ["pass"] * 2


def test_automatic_settings_are_those_of_the_timed_batch(
    tiny_model: ModelFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[list[int]]] = []

    def resolve_sparse_attention(
        _target: Any, _params: Any, prompts: list[list[int]], _do_sample: bool
    ) -> Resolved:
        seen.append(prompts)
        return Resolved(None)

    monkeypatch.setattr(strategy, "resolve_sparse_attention", resolve_sparse_attention)
    model = tiny_model()
    rows = [*prompts_of(2, 9), *prompts_of(1, 30)]
    for size in (1, 4):
        target = Target.of(model)
        select_candidates(model, target, "sparse_attention", {}, Sampling(), rows, batch_size=size)
    assert [[len(row) for row in shown] for shown in seen] == [[30], [30, 9, 9, 30]]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--batches", "0"), "argument --batches: must be >= 1 (got 0); try 1"),
        (("--draft", "ratio=7"), "draft_params.ratio: must be in (0, 1] (got 7); try 0.05"),
        (("--task", "nope"), "argument --task: is no task (got 'nope')"),
        (("--dtype", "float31"), "argument --dtype: invalid choice: 'float31'"),
        ((), "no directory"),
    ],
)
def test_the_program_refuses_in_words(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: tuple[str, ...],
    words: str,
) -> None:
    """Nothing of a checkpoint is needed for that: this one does not exist."""
    program = load_script("bench_long_context")
    monkeypatch.setattr("sys.argv", ["bench", str(tmp_path / "none"), *arguments])
    try:
        code = program.main()
    except SystemExit as stop:
        code = stop.code
    assert code == 2
    assert words in " ".join(capsys.readouterr().err.split())

"""Cells of batch × context: every draft asked for beside plain decoding, and what is reported of them."""

from __future__ import annotations

import mmap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ssd_infer.__main__ import exit_code
from ssd_infer.config.evaluation import EvalSettings
from ssd_infer.corpus import Task
from ssd_infer.engine.prefilled import Prefilled, prefill
from ssd_infer.engine.session import Proposal
from ssd_infer.engine.target import Target
from ssd_infer.errors import ConfigError
from ssd_infer.evaluation.causal import sweep as sweeping
from ssd_infer.evaluation.causal.sweep import fault_of, sweep
from ssd_infer.evaluation.strategies import select_candidates
from ssd_infer.evaluation.studies import Findings
from ssd_infer.strategies.base import Resolved
from ssd_infer.strategies.early_exit import exit_calibration
from ssd_infer.strategies.early_exit.early_exit import EarlyExit
from ssd_infer.strategies.info import StrategyInfo
from ssd_infer.strategies.ngram.ngram import Ngram, NgramParams
from ssd_infer.strategies.sparse_attention import budgets
from ssd_infer.strategies.sparse_attention import sparse_attention as strategy
from ssd_infer.strategies.study import Sampling
from ssd_infer.tuning.budget import Budget, Deadline
from ssd_infer.tuning.cell import PLAIN, THEIRS, Way, measure_cell, room_for
from ssd_infer.tuning.cell_report import IDLE, cell_report
from ssd_infer.tuning.peak import PeakMemory
from tests.conftest import ModelFactory
from tests.registered import know_only
from tests.scripts.load import load_script

NEW = 6
PILLAR = {"selector": "pillar", "ratio": 0.2, "min_budget": 8, "gamma": 3, "cold_start": "prompt"}
DRAFTS: dict[str, dict[str, Any]] = {
    "pillar": PILLAR,
    "snapkv": {"selector": "snapkv", "ratio": 0.2, "min_budget": 8, "gamma": 3},
    "balanced": {"selector": "vegas", "ratio": 0.2, "min_budget": 8, "gamma": 3, "phases": "balanced"},
}


def prompts_of(count: int, length: int = 60) -> list[list[int]]:
    generator = torch.Generator().manual_seed(4)
    return torch.randint(2, 97, (count, length), generator=generator).tolist()


def sparse(target: Target, name: str, params: dict[str, Any]) -> Way:
    found = strategy.SparseAttention.prepare(target, params, prompts_of(2), do_sample=False).params
    assert found is not None
    return Way(name, strategy.SparseAttention, found, params)


def filled_rows(target: Target, ways: list[Way], batch: int = 2, length: int = 60) -> Prefilled:
    rows = [prefill(target, prompt) for prompt in prompts_of(2, length)]
    return Prefilled(target, rows, batch, NEW, room_for(ways))


def test_no_draft_touches_the_slots_of_the_prompts(tiny_model: ModelFactory) -> None:
    target = Target.of(_model := tiny_model(layers=3))
    ways = [sparse(target, name, params) for name, params in DRAFTS.items()]
    filled = filled_rows(target, ways, 3)
    before = [part[:, :, :60].clone() for layer in range(3) for part in filled.cache.held(layer)]
    found = {row.name: row for row in measure_cell(filled, ways, NEW, repeats=2)}
    after = [part[:, :, :60] for layer in range(3) for part in filled.cache.held(layer)]
    assert all(torch.equal(left, right) for left, right in zip(before, after, strict=True))
    assert set(found) == {PLAIN, THEIRS, *DRAFTS}
    for row in found.values():
        assert [tokens[:NEW] for tokens in row.tokens] == [tokens[:NEW] for tokens in found[PLAIN].tokens]
        assert len(row.seconds) == len(row.emitted) == (1 if row.name == THEIRS else 2)
        assert row.rate > 0
    assert found["pillar"].alpha is not None


def test_prompts_are_heard_before_the_first_draft(tiny_model: ModelFactory) -> None:
    """Without the scores of the prefill the first round would be dense, and would read whole rows."""
    target = Target.of(_model := tiny_model())
    ways = [sparse(target, "pillar", PILLAR)]
    _, row = measure_cell(filled_rows(target, ways), ways, NEW, 1, their_tokens=0)
    assert len(row.report["per_position"]) > 0
    assert row.report["slots_per_token_draft"] < 3 * 60 / 2


def test_a_cell_reports_ratios_and_verdicts(tiny_model: ModelFactory) -> None:
    target = Target.of(_model := tiny_model())
    ways = [sparse(target, "pillar", PILLAR), Way("declined", note="plain decoding: no gain")]
    filled = filled_rows(target, ways)
    found = measure_cell(filled, ways, NEW, 1, their_tokens=NEW // 2)
    plain, theirs, pillar, declined = cell_report(found, filled.slot_bytes, strict=True)
    assert plain["verdict"] == theirs["verdict"] == pillar["verdict"] == declined["verdict"] == "pass"
    fastest = max(plain["tokens_per_second"], theirs["tokens_per_second"])
    assert pillar["speedup"] == pytest.approx(pillar["tokens_per_second"] / fastest)
    assert pillar["verify_ratio"] > 0
    assert plain["verify_ratio"] == 1.0
    assert plain["kv_bytes_per_token"] == 60 * filled.slot_bytes == 60 * 4 * 2 * 2 * 8 * 4
    same = ("tokens_per_second", "speedup", "peak_bytes", "alpha", "tau")
    assert [declined[key] for key in same] == [plain[key] for key in same]
    assert (declined["plain"], declined["note"], pillar["plain"]) == (True, "plain decoding: no gain", False)
    assert declined["own_tokens_per_second"] is None
    found[2].drafted = 0
    idle = cell_report(found, 1, strict=True)[2]
    assert (idle["speedup"], idle["plain"], idle["note"]) == (plain["speedup"], True, IDLE)
    assert idle["own_tokens_per_second"] == pillar["tokens_per_second"]
    found[2].tokens[1][-1] += 1
    assert [row["verdict"] for row in cell_report(found, 1, strict=True)] == ["pass", "pass", "fail", "pass"]
    assert cell_report(found, 1, strict=False)[2]["verdict"] == "not_run"


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


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut prompts without a tokenizer."""

    def build(_names: Any, _tokenizer: Any, count: int, context: int, _seed: int) -> list[Task]:
        return [Task("long_continuation", prompts_of(count, context))]

    monkeypatch.setattr(sweeping, "build_tasks", build)


def context_of(model: Any, draft: str = "sparse_attention", **changes: Any) -> Any:
    """Return as much of an evaluation as a sweep asks for."""
    given = {"checkpoint": "-", "contexts": [40], "batches": [1, 3], "max_new_tokens": NEW, "repeats": 1}
    asked = {key: changes.pop(key) for key in list(changes) if key in EvalSettings.__dataclass_fields__}
    parts = {
        "model": model,
        "settings": EvalSettings(**(given | {"draft": draft} | asked)),
        "target": Target.of(model),
        "tokenizer": object(),
        "notes": [],
        "say": lambda _: None,
        "calibration": [],
        "units": [],
        "shift": [],
    }
    return SimpleNamespace(**(parts | changes))


def swept(context: Any, deadline: Deadline | None = None) -> Findings:
    return sweep(context, deadline or Budget(0).deadline(1), 10.0)


class Declining(Ngram):
    """A draft that always chooses plain decoding."""

    info = StrategyInfo("declining", "causal", "declining")

    @classmethod
    def resolve(cls, *_: Any) -> Resolved:
        return Resolved(None, "plain decoding: no gain is predicted")


class Guessing(Ngram):
    """A draft that guesses one token for every row, and may fail at a batch."""

    info = StrategyInfo("guessing", "causal", "guessing")
    fails_at = 0

    @classmethod
    def resolve(cls, *_: Any) -> Resolved:
        return Resolved(NgramParams())

    def propose(self, limit: int) -> Proposal:
        if len(self.session.rows) == self.fails_at:
            raise RuntimeError("not enough memory")
        return Proposal(torch.full((len(self.session.rows), min(1, limit)), 7))


class Lying(Guessing):
    """A draft that has its guesses emitted without being compared, and promises the contrary."""

    info = StrategyInfo("lying", "causal", "lying")

    def propose(self, limit: int) -> Proposal:
        tokens = torch.full((len(self.session.rows), min(1, limit)), 7)
        return Proposal(tokens, unverified=torch.ones_like(tokens, dtype=torch.bool))


class Honest(Lying):
    """The same, without the promise."""

    info = StrategyInfo("honest", "causal", "honest")
    lossless = False


@pytest.mark.usefixtures("texts")
def test_a_sweep_has_every_cell_and_acceptance_by_budget(tiny_model: ModelFactory) -> None:
    found = swept(context_of(tiny_model(), draft_params={"selector": "streaming", "gamma": 2}))
    own = found.facts["sparse_attention"]["sweep"]
    assert [(cell["batch"], cell["name"]) for cell in own["cells"]] == [
        (batch, name) for batch in (1, 3) for name in (PLAIN, THEIRS, "sparse_attention")
    ]
    assert [row["params"]["ratio"] for row in own["budgets"]] == list(budgets.RATIOS)
    reads = [row["kv_bytes_per_token"] * row["tau"] for row in own["budgets"]]
    assert reads == sorted(reads)
    assert found.faults == {}


@pytest.mark.usefixtures("texts")
def test_every_draft_asked_for_has_its_own_cells(
    tiny_model: ModelFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    know_only(monkeypatch, ("early_exit", "early_exit+ngram", "reduced_experts"), Declining, Guessing)
    settled: list[int] = []
    before = EarlyExit.resolve.__func__

    def resolve(cls: Any, target: Target, params: Any, prompts: list[list[int]], do_sample: bool) -> Resolved:
        settled.append(len(prompts))
        return before(cls, target, params, prompts, do_sample)

    monkeypatch.setattr(EarlyExit, "resolve", classmethod(resolve))
    model = tiny_model()
    context = context_of(model, "all", contexts=[40, 20])
    found = swept(context)
    cells = {row: facts["sweep"].get("cells", []) for row, facts in found.facts.items()}
    for row in ("early_exit", "early_exit:ngram", "declining", "guessing"):
        own = [(cell["context"], cell["batch"], cell["name"]) for cell in cells[row]]
        names = (PLAIN, THEIRS, row)
        assert own == [(c, b, name) for c in (20, 40) for b in (1, 3) for name in names], row
        assert {cell["verdict"] for cell in cells[row]} == {"pass"}
    assert "experts" in found.facts["reduced_experts"]["sweep"]["reason"]
    assert all(cell["plain"] for cell in cells["declining"] if cell["name"] == "declining")
    assert all(cell["tau"] >= 1 for cell in cells["guessing"] if cell["name"] == "guessing")
    assert sorted(settled) == [1, 1, 1, 1, 3, 3, 3, 3], "either exit draft at both batches and contexts"
    assert exit_calibration._profiles.get(model, False) is None, "what the sweep measured stays in it"
    assert context.notes == []


@pytest.mark.usefixtures("texts")
@pytest.mark.parametrize(
    ("draft", "params"), [("ngram", {"gamma": 4}), ("early_exit", {"exit_layer": 1, "gamma": 100})]
)
def test_settings_by_hand_are_those_of_every_cell(
    tiny_model: ModelFactory, draft: str, params: dict[str, Any]
) -> None:
    found = swept(context_of(tiny_model(), draft, draft_params=params))
    own = [cell for cell in found.facts[draft]["sweep"]["cells"] if cell["name"] == draft]
    assert [cell["batch"] for cell in own] == [1, 3]
    assert all(params.items() <= cell["params"].items() for cell in own)
    assert all(cell["alpha"] is not None or cell["note"] == IDLE for cell in own)
    with pytest.raises(ConfigError, match=r"draft_params\.gamma"):
        swept(context_of(tiny_model(), draft, draft_params={"gamma": 0}))


@pytest.mark.usefixtures("texts")
def test_a_cell_with_other_tokens_fails_the_row_that_promised_none(
    tiny_model: ModelFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    know_only(monkeypatch, (), Lying, Honest, Guessing)
    found = swept(context_of(tiny_model(), "all"))
    assert set(found.faults) == {"lying"}
    assert "batch 1 at 40 tokens of context, batch 3 at 40 tokens" in found.faults["lying"]
    row: dict[str, Any] = {"name": "lying", "status": "ok", "lossless": {"claimed": True}, "extra": {}}
    found.attach(row)
    assert row["lossless"]["verdict"] == "fail"
    assert exit_code({"strategies": [row]}) == 1
    verdicts = {
        cell["verdict"] for cell in found.facts["honest"]["sweep"]["cells"] if cell["name"] == "honest"
    }
    assert verdicts == {"fail"}


@pytest.mark.usefixtures("texts")
def test_a_draft_that_fails_in_a_cell_is_a_warning_and_the_others_go_on(
    tiny_model: ModelFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    know_only(monkeypatch, ("early_exit",), Guessing)
    monkeypatch.setattr(Guessing, "fails_at", 3)
    context = context_of(tiny_model(), "all")
    found = swept(context)
    cells = {row: facts["sweep"]["cells"] for row, facts in found.facts.items()}
    assert [cell["batch"] for cell in cells["guessing"] if cell["name"] == "guessing"] == [1]
    assert [cell["batch"] for cell in cells["early_exit"] if cell["name"] == "early_exit"] == [1, 3]
    where = "guessing: batch 3 at 40 tokens of context was not measured"
    assert context.notes == [f"{where}: RuntimeError: not enough memory"]


@pytest.mark.usefixtures("texts")
def test_a_draft_whose_choice_fails_is_a_warning(
    tiny_model: ModelFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    know_only(monkeypatch, (), Guessing)

    def resolve(*_: Any) -> Resolved:
        raise RuntimeError("no such choice")

    monkeypatch.setattr(Guessing, "resolve", resolve)
    context = context_of(tiny_model(), "all", batches=[2])
    cells = swept(context).facts["guessing"]["sweep"]["cells"]
    assert [cell["name"] for cell in cells] == [PLAIN, THEIRS]
    assert context.notes == [
        "guessing: batch 2 at 40 tokens of context was not measured: RuntimeError: no such choice"
    ]


@pytest.mark.usefixtures("texts")
def test_the_deadline_leaves_out_cells_in_words(
    tiny_model: ModelFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    know_only(monkeypatch, (), Declining)
    context = context_of(tiny_model(), "all")
    late = swept(context, Budget(1e-9).deadline(1))
    assert late.facts["declining"]["sweep"]["cells"] == []
    assert context.notes == ["the time limit left out prefilling 40 tokens of context"]
    context = context_of(tiny_model(), "all")

    def tick() -> float:
        """Pass once the first cell is being said."""
        return 1.0 if over else 0.0

    over: list[str] = []
    context.say = lambda line: over.append(line) if line.startswith("decoding") else None
    cells = swept(context, Deadline(0.5, tick)).facts["declining"]["sweep"]["cells"]
    assert [cell["name"] for cell in cells] == [PLAIN, "declining"]
    assert context.notes == [
        "transformers: batch 1 at 40 tokens of context was not measured: the time limit left it out",
        "the time limit left out the sweep at batch 3 at 40 tokens of context",
    ]


def test_a_sweep_that_cannot_be_made_says_why(tiny_model: ModelFactory) -> None:
    model = tiny_model()
    context = context_of(model, tokenizer=None)
    reason = swept(context).facts["sparse_attention"]["sweep"]["reason"]
    assert "no tokenizer" in reason
    assert context.notes == [f"contexts: no sweep was made: {reason}"]
    refused = swept(context_of(model, target="no layers"))
    assert refused.facts == {"sparse_attention": {"sweep": {"reason": "no layers"}}}
    windowed = swept(context_of(tiny_model("mistral", sliding_window=16)))
    assert "sliding window" in windowed.facts["sparse_attention"]["sweep"]["reason"]
    short = context_of(tiny_model("gpt2", n_positions=48, max_position_embeddings=48), "ngram")
    assert swept(short).facts["ngram"]["sweep"]["cells"] == []
    assert short.notes == [
        "contexts: 40 tokens of context were left out: it has 48 positions, and this text may need 115"
    ]


@pytest.mark.parametrize(
    ("status", "after"), [("ok", "ok"), ("not_applicable", "failed"), ("failed", "failed")]
)
def test_a_cell_that_changed_the_output_fails_its_row(status: str, after: str) -> None:
    def cells(*named: tuple[str, str], claimed: bool = True) -> Any:
        return [{"name": n, "batch": 4, "context": 64, "verdict": v, "claimed": claimed} for n, v in named]

    row: dict[str, Any] = {
        "name": "sparse_attention",
        "status": status,
        "lossless": {"claimed": True, "verdict": "pass", "detail": ""},
        "extra": {},
    }
    name = "sparse_attention"
    assert fault_of(name, cells(("transformers", "fail"), (name, "pass"))) is None
    assert fault_of(name, cells((name, "fail"), claimed=False)) is None
    wrong = {"cells": cells(("plain", "pass"), (name, "fail"))}
    fault = fault_of(name, wrong["cells"])
    assert fault is not None
    Findings({"sparse_attention": {"sweep": wrong}}).attach(row)
    assert row["lossless"]["verdict"] == "pass"
    Findings({"sparse_attention": {"sweep": wrong}}, {"sparse_attention": fault}).attach(row)
    assert (row["lossless"]["verdict"], row["status"]) == ("fail", after)
    assert len(row["extra"]["sweep"]["cells"]) == 2
    assert exit_code({"strategies": [row]}) == 1
    assert "batch 4 at 64 tokens" in row["lossless"]["detail"]


@pytest.mark.usefixtures("texts")
def test_a_sweep_that_fails_costs_the_report_nothing(
    tiny_model: ModelFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sweeping.measured

    def short_of_memory(cell: Any, rows: Any, batch: int) -> Any:
        if batch == 3:
            raise RuntimeError("not enough memory")
        return before(cell, rows, batch)

    monkeypatch.setattr(sweeping, "measured", short_of_memory)
    context = context_of(tiny_model(), draft_params={"gamma": 2})
    found = swept(context).facts["sparse_attention"]["sweep"]
    assert {cell["batch"] for cell in found["cells"]} == {1}
    assert found["budgets"]
    rule = "the sweep at batch 3 at 40 tokens of context failed: RuntimeError: not enough memory"
    assert context.notes == [rule]


@pytest.mark.parametrize("length", [1, 5])
@pytest.mark.parametrize("selector", ["pillar", "vegas", "snapkv"])
def test_contexts_shorter_than_what_is_heard_of_them(
    tiny_model: ModelFactory, selector: str, length: int
) -> None:
    target = Target.of(_model := tiny_model())
    params = {"selector": selector, "ratio": 0.1, "min_budget": 1, "gamma": 3, "cold_start": "prompt"}
    ways = [sparse(target, "draft", params)]
    filled = filled_rows(target, ways, 3, length)
    cell = measure_cell(filled, ways, NEW, 1, their_tokens=0)
    assert [row["verdict"] for row in cell_report(cell, filled.slot_bytes, strict=True)] == ["pass"] * 2


def test_there_is_room_for_the_longest_draft(tiny_model: ModelFactory) -> None:
    target = Target.of(_model := tiny_model())
    ways = [sparse(target, "draft", {"gamma": 100, "ratio": 1.0}), Way("declined")]
    filled = filled_rows(target, ways)
    cell = measure_cell(filled, ways[:1], NEW, 1, their_tokens=0)
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
        (("--draft", "early_exit:gamma=0"), "draft_params.gamma: must be >= 1 (got 0)"),
        (("--draft", "none_such"), "draft: must name a draft strategy (got 'none_such')"),
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

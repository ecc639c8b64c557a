"""From a checkpoint directory to report files, on a small model of random weights."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ssd_infer.__main__ import main
from ssd_infer.checkpoint.provenance import command_line, weights_sha256
from ssd_infer.config.evaluation import EvalSettings
from ssd_infer.errors import CheckpointError, ConfigError, DataError, OutputError
from ssd_infer.evaluation import evaluate
from ssd_infer.evaluation.causal import causal_kind, judging
from ssd_infer.evaluation.series import evaluate_run, find_checkpoints
from ssd_infer.report.rows import exit_code, gains, noise_rows, plain_rows
from ssd_infer.report.schema import validate
from ssd_infer.report.write import read_report
from ssd_infer.strategies.base import Resolved
from ssd_infer.strategies.early_exit.early_exit import EarlyExit
from ssd_infer.strategies.early_exit.exit_calibration import ExitProfile
from ssd_infer.strategies.early_exit.exit_params import EarlyExitParams
from ssd_infer.strategies.skip_layers import SKIP_SET, SWIFT
from tests.conftest import build_model
from tests.engine.causal_families import tiny
from tests.registered import know_only

BUILT = ("early_exit", "early_exit+ngram", "ngram")
"""Strategies that take part here; what others do is tested with them, and each would be timed again in every test.

They are told that they gain, so that they draft whatever the clock says of this small model.
"""


@pytest.fixture(scope="module", autouse=True)
def few_strategies() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        know_only(patch, BUILT)
        predict = ExitProfile.best
        patch.setattr(ExitProfile, "best", lambda *given: replace(predict(*given), speedup=1.5))
        yield


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "checkpoints" / "step-7"
    build_model(layers=3, eos_token_id=2).save_pretrained(folder)
    (folder / "ssd.json").write_text(json.dumps({"recipe": "layerskip", "step": 7}))
    prompts = [[5 + (7 * i * j + j) % 90 for j in range(8)] for i in range(1, 5)]
    (folder / "prompts.jsonl").write_text("\n".join(json.dumps({"ids": ids}) for ids in prompts))
    return folder


def settings(folder: Path, **changes: Any) -> EvalSettings:
    base = {
        "checkpoint": str(folder),
        "tasks": [f"file:{folder}/prompts.jsonl"],
        "samples": 3,
        "repeats": 1,
        "max_new_tokens": 10,
        "threads": 1,
        "device": "cpu",
        "grid": False,
    }
    return EvalSettings(**(base | changes))


@pytest.fixture(scope="module")
def full(checkpoint: Path) -> Iterator[dict[str, Any]]:
    said: list[str] = []
    report = evaluate(settings(checkpoint, grid=True), said.append)
    assert len(said) >= 5
    return report


def test_plain_decoding_that_fails_is_a_warning_with_its_reason(checkpoint: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(checkpoint, tmp_path / "step-7")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, None]}))
    report = evaluate(settings(folder, temperatures=[0.0], draft="early_exit", out=str(tmp_path / "out")))
    warnings = [line for line in report["verdict"]["warnings"] if line.startswith("ssd_plain failed: ")]
    assert len(warnings) == 1
    assert "generation_config.eos_token_id: must be a token id" in warnings[0]


def rows(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in report["strategies"]}


def test_report_is_valid_complete_and_written(full: dict[str, Any], checkpoint: Path) -> None:
    validate(full)
    assert read_report(checkpoint / "report") == json.loads(json.dumps(full))
    assert {path.name for path in (checkpoint / "report").iterdir()} == {
        "report.json",
        "report.md",
        "report.html",
        "samples.jsonl",
    }
    assert {name.split(":")[0] for name in rows(full)} == {"early_exit", "fewer_steps", "ctc_draft"}
    assert full["identity"]["step"] == 7
    assert full["identity"]["recipe"] == "layerskip"
    assert full["identity"]["weights_sha256"] == weights_sha256(checkpoint)


def test_both_temperatures_have_rows_baselines_and_verdicts(full: dict[str, Any]) -> None:
    found = rows(full)
    for name in ("early_exit", "early_exit:t1", "early_exit:ngram", "early_exit:ngram:t1"):
        assert (found[name]["status"], found[name]["lossless"]["verdict"]) == ("ok", "pass"), found[name]
        assert found[name]["extra"]["repetition"]["distinct_3"] > 0
        low, high = found[name]["speed"]["ci95"]
        assert low <= found[name]["speed"]["speedup"] <= high
    assert found["early_exit"]["lossless"]["detail"].startswith("greedy: 3 of 3")
    assert "exact enumeration" in found["early_exit:t1"]["lossless"]["detail"]
    assert {row["name"] for row in full["baselines"]} >= {
        "ssd_plain",
        "transformers_generate",
        "ssd_plain:t1",
        "ssd_plain:again",
        "ssd_plain:again:t1",
    }
    assert {row["name"] for row in full["peers"]} >= {
        "prompt_lookup",
        "assistant_early_exit",
        "prompt_lookup:t1",
    }
    assert exit_code(full) == 0


def test_absent_strategies_say_why(full: dict[str, Any]) -> None:
    found = rows(full)
    for name in ("fewer_steps", "ctc_draft"):
        assert found[name]["status"] == "not_applicable"
        assert found[name]["reason"]
        assert found[name]["lossless"]["verdict"] == "not_run"
        assert found[name]["speed"]["speedup"] is None


def test_speedup_is_against_the_fastest_baseline(checkpoint: Path, tmp_path: Path) -> None:
    chosen = {"exit_layer": 1, "gamma": 2}
    wanted = settings(checkpoint, out=str(tmp_path), temperatures=[0.0], draft="early_exit")
    report = evaluate(replace(wanted, draft_params=chosen))
    greedy = {row["name"]: row["tokens_per_second"] for row in plain_rows(report)}
    row = rows(report)["early_exit"]
    assert row["params"] == chosen | {"confidence": 0.0}
    assert report["verdict"]["best_params"] == (row["params"] if gains(row) else None)
    fastest = max(greedy, key=greedy.__getitem__)
    assert row["speed"]["against"] == fastest
    assert row["speed"]["speedup"] == pytest.approx(row["speed"]["tokens_per_second"] / greedy[fastest])
    cost, counts = row["cost"], row["acceptance"]
    gamma = cost["forwards"]["draft"] / counts["rounds"]
    wanted = (1 + counts["accepted"] / counts["rounds"]) / (
        gamma * cost["draft_ratio_c"] + cost["verify_ratio"]
    )
    assert row["speed"]["predicted_speedup"] == pytest.approx(wanted)


def test_quality_and_grid(full: dict[str, Any]) -> None:
    exits = full["quality"]["exits"]
    assert [exit_["layer"] for exit_ in exits] == [1, 2, 3]
    assert exits[-1]["agreement"] == 1.0
    assert exits[0]["agreement"] < 1.0
    grid = rows(full)["early_exit"]["extra"]["grid"]
    assert {cell["exit_layer"] for cell in grid["predicted"]} == {1}
    assert grid["measured"]


def test_quality_is_that_of_the_model(full: dict[str, Any], checkpoint: Path) -> None:
    model = build_model(layers=3, eos_token_id=2)
    lines = [json.loads(line)["ids"] for line in (checkpoint / "prompts.jsonl").read_text().splitlines()][:3]
    losses = [model(input_ids=torch.tensor([ids]), labels=torch.tensor([ids])).loss.item() for ids in lines]
    assert full["quality"]["loss"] == pytest.approx(sum(losses) / 3, rel=1e-4)


def test_samples_list_every_timed_call(full: dict[str, Any], checkpoint: Path) -> None:
    lines = [json.loads(line) for line in (checkpoint / "report" / "samples.jsonl").read_text().splitlines()]
    mine = [line for line in lines if line["name"] == "early_exit"]
    assert len(mine) == 3
    assert all(len(line["tokens"][0]) <= 10 and line["seconds"] > 0 for line in mine)
    histogram = rows(full)["early_exit"]["acceptance"]["histogram"]
    assert sum(sum(line["accepted"][0]) for line in mine) == sum(histogram)


def test_baselines_are_measured_against_themselves_in_every_report(full: dict[str, Any]) -> None:
    found = {row["name"]: row["extra"]["again"] for row in noise_rows(full)}
    assert {name: row["of"] for name, row in found.items()} == {
        "ssd_plain:again": "ssd_plain",
        "ssd_plain:again:t1": "ssd_plain:t1",
    }
    for name, suffix in (("ssd_plain:again", ""), ("ssd_plain:again:t1", ":t1")):
        low, high = found[name]["ci95"]
        assert found[name]["noise"] == pytest.approx(max(high, 1 / low) - 1)
        row = rows(full)[f"early_exit{suffix}"]
        assert row["extra"]["noise"] == found[name]["noise"]
        assert row["speed"]["ci95"][0] <= row["speed"]["speedup"] / (1 + found[name]["noise"]) + 1e-9


def losing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every prediction be a loss."""
    predict = ExitProfile.best
    monkeypatch.setattr(ExitProfile, "best", lambda *given: replace(predict(*given), speedup=0.7))


def test_what_is_predicted_to_lose_is_plain_untimed_and_its_law_untested(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losing(monkeypatch)
    monkeypatch.setattr(judging, "judge_sampling", lambda *_: pytest.fail("a law that cannot be broken"))
    report = evaluate(settings(checkpoint, out=str(tmp_path / "r"), draft="early_exit"))
    for name, plain in (("early_exit", "ssd_plain"), ("early_exit:t1", "ssd_plain:t1")):
        row = rows(report)[name]
        base = next(line for line in report["baselines"] if line["name"] == plain)
        assert row["speed"] == {
            "tokens_per_second": base["tokens_per_second"],
            "speedup": 1.0,
            "ci95": None,
            "predicted_speedup": 0.7,
            "against": plain,
        }
        assert row["extra"]["shares_samples_of"] == plain
        assert "predicted speedup is 0.70" in row["reason"]
        assert row["lossless"]["verdict"] == "pass"
    lines = (tmp_path / "r" / "samples.jsonl").read_text().splitlines()
    assert "early_exit" not in {json.loads(line)["name"] for line in lines}
    assert report["verdict"]["best_strategy"] is None
    assert exit_code(report) == 0


class Doubtful(EarlyExit):
    """A strategy that would draft although it predicts a loss."""

    info = SWIFT

    @classmethod
    def resolve(cls, *arguments: Any) -> Resolved:
        return Resolved(EarlyExitParams(1, 2, 0.0), "auto: exit 1", 0.8)


def test_a_predicted_loss_is_not_timed_unless_its_parameters_were_given(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    know_only(monkeypatch, BUILT, Doubtful)
    wanted = settings(checkpoint, out=str(tmp_path), temperatures=[0.0], draft="swift", samples=2)
    row = rows(evaluate(wanted))["swift"]
    assert row["extra"]["fell_back_to_plain"] is True
    assert row["reason"] == "plain decoding: not timed, the predicted speedup is 0.80 (auto: exit 1)"
    row = rows(evaluate(replace(wanted, draft_params={"exit_layer": 1})))["swift"]
    assert row["extra"]["fell_back_to_plain"] is False
    assert row["acceptance"]["drafted"] > 0


class Endless(EarlyExit):
    """A strategy whose calibration never ends by itself."""

    info = SKIP_SET

    @classmethod
    def resolve(cls, target: Any, *arguments: Any) -> Resolved:
        while True:
            target.model(input_ids=torch.tensor([[5, 6]]))


def test_a_calibration_without_end_is_a_row_and_the_limit_holds(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    know_only(monkeypatch, BUILT, Endless)
    report = evaluate(settings(checkpoint, out=str(tmp_path), max_minutes=0.05, samples=2))
    for name in ("skip_set", "skip_set:t1"):
        row = rows(report)[name]
        assert row["status"] == "not_applicable"
        assert "did not end in its share of the time limit" in row["reason"]
    # Three seconds may leave a row untested on a slow machine, which the exit code tells; none may have failed.
    assert {row["status"] for row in rows(report).values()} <= {"ok", "not_applicable"}
    assert "fail" not in {row["lossless"]["verdict"] for row in rows(report).values()}


class Exploding(EarlyExit):
    """A strategy that fails while drafting."""

    info = SWIFT

    @classmethod
    def resolve(cls, *arguments: Any) -> Resolved:
        return Resolved(EarlyExitParams(1, 2))

    def propose(self, limit: int) -> Any:
        raise RuntimeError("no such layer")


class Unresolvable(EarlyExit):
    """A strategy that fails while choosing its parameters."""

    info = SKIP_SET

    @classmethod
    def resolve(cls, *arguments: Any) -> Any:
        raise RuntimeError("search crashed")


def test_failing_strategies_are_rows_and_the_rest_goes_on(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    know_only(monkeypatch, BUILT, Exploding, Unresolvable)
    report = evaluate(settings(checkpoint, out=str(tmp_path), temperatures=[0.0], samples=2))
    found = rows(report)
    assert found["swift"]["status"] == "failed"
    assert "no such layer" in found["swift"]["reason"]
    assert found["skip_set"]["status"] == "failed"
    assert "search crashed" in found["skip_set"]["reason"]
    assert found["early_exit"]["status"] == "ok"
    assert exit_code(report) == 1
    assert any("swift failed" in line for line in report["verdict"]["warnings"])


def accept_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Break the engine: every drafted token counts as verified."""
    import ssd_infer.engine.verdict as verdict

    right = verdict.accept

    def accept_all(
        logits: Any, draft: Any, counts: Any, probs: Any, sampler: Any, unverified: Any = None
    ) -> Any:
        taken, following = right(logits, draft, counts, probs, sampler, unverified)
        return torch.full_like(taken, draft.shape[1]), following

    monkeypatch.setattr(verdict, "accept", accept_all)


@pytest.mark.parametrize("broken", [False, True])
def test_the_command_exits_with_1_when_a_lossless_row_fails(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    if broken:
        accept_everything(monkeypatch)
    line = f"checkpoint={checkpoint} tasks=file:{checkpoint}/prompts.jsonl out={tmp_path}/out samples=2 repeats=1"
    line += (
        " temperatures=0 grid=false draft=early_exit draft_params.exit_layer=1 draft_params.gamma=3 threads=1"
    )
    monkeypatch.setattr(sys, "argv", ["ssd_infer", *line.split(), "max_new_tokens=8", "device=cpu"])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == int(broken)
    verdict = rows(read_report(tmp_path / "out"))["early_exit"]["lossless"]["verdict"]
    assert verdict == ("fail" if broken else "pass")


def test_wrong_verifier_fails_both_rows_and_the_exit_code(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept_everything(monkeypatch)
    wanted = settings(
        checkpoint, out=str(tmp_path), draft="early_exit", draft_params={"exit_layer": 1, "gamma": 3}
    )
    report = evaluate(wanted)
    assert [rows(report)[name]["lossless"]["verdict"] for name in ("early_exit", "early_exit:t1")] == [
        "fail",
        "fail",
    ]
    assert exit_code(report) == 1
    assert report["verdict"]["best_strategy"] is None
    assert (
        rows(report)["early_exit:ngram"]["reason"] == "not measured: this run asked for draft=early_exit only"
    )


def test_batches_of_ragged_prompts_and_lower_precision(checkpoint: Path, tmp_path: Path) -> None:
    ragged = tmp_path / "ragged.jsonl"
    ragged.write_text("\n".join(json.dumps({"ids": [5 + n, *range(10, 10 + 3 * n)]}) for n in range(1, 5)))
    wanted = settings(
        checkpoint,
        out=str(tmp_path / "r"),
        tasks=[f"file:{ragged}"],
        samples=4,
        batch_size=4,
        temperatures=[0.0],
        draft="early_exit",
        draft_params={"exit_layer": 1, "gamma": 2},
        dtype="bfloat16",
    )
    report = evaluate(wanted)
    assert rows(report)["early_exit"]["lossless"]["verdict"] == "pass"
    assert report["environment"]["dtype"] == "bfloat16"
    assert report["protocol"]["batch_size"] == 4
    failed = next(peer for peer in report["peers"] if peer["name"] == "assistant_early_exit")
    assert failed["speedup"] is None
    assert failed["extra"]["reason"]


def test_unsupported_architecture_still_gets_a_report(tmp_path: Path) -> None:
    tiny("recurrent_gemma").save_pretrained(tmp_path / "m")  # type: ignore[operator]
    (tmp_path / "m" / "prompts.jsonl").write_text(
        json.dumps({"ids": [5, 6, 7]}) + "\n" + json.dumps({"ids": [8, 9]})
    )
    report = evaluate(settings(tmp_path / "m", temperatures=[0.0], samples=2, max_new_tokens=4))
    assert rows(report)["early_exit"]["status"] == "not_applicable"
    assert "RecurrentGemma" in rows(report)["early_exit"]["reason"]
    assert {row["name"]: bool(row["tokens_per_second"]) for row in report["baselines"]} == {
        "ssd_plain": False,
        "transformers_generate": True,
        "transformers_generate:again": True,
    }
    assert report["verdict"]["best_strategy"] is None
    assert exit_code(report) == 0


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"draft": "early_exi"}, ConfigError, "draft: must be all, a group or a strategy"),
        (
            {"draft": "early_exit", "draft_params": {"exit_layer": 3}},
            ConfigError,
            r"draft_params\.exit_layer: must be < 3",
        ),
        ({"tasks": ["stdlib_code"]}, DataError, "no tokenizer"),
        (
            {"device": "cuda:99"},
            ConfigError,
            r"device: is not available on this machine \(got 'cuda:99'\); use device=cpu",
        ),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(
    checkpoint: Path, tmp_path: Path, changes: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        evaluate(settings(checkpoint, out=str(tmp_path / "out"), **changes))
    assert not (tmp_path / "out").exists()


def test_ids_of_another_vocabulary_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "other.jsonl").write_text(json.dumps({"ids": [5, 6]}) + "\n" + json.dumps({"ids": [7, 5000]}))
    with pytest.raises(DataError, match=r"tasks: .*other\.jsonl must be below .* \(got 5000\); give ids"):
        evaluate(settings(checkpoint, tasks=[f"file:{tmp_path}/other.jsonl"], out=str(tmp_path / "out")))
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_of_another_model_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"<unk>": 5000}, unk_token="<unk>"))
    build_model(layers=3).save_pretrained(tmp_path / "m")
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(tmp_path / "m")
    (tmp_path / "m" / "prompts.jsonl").write_text(json.dumps({"ids": [5, 6]}))
    wanted = settings(tmp_path / "m", tasks=["copy"], out=str(tmp_path / "out"))
    with pytest.raises(
        CheckpointError, match=r"checkpoint: .* must be below .* \(got 5000\); save the tokenizer"
    ):
        evaluate(wanted)


def test_an_unwritable_place_is_refused_before_loading(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(causal_kind, "open_context", lambda *_: pytest.fail("loaded"))
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"out: must be a place .*/file/out': Not a directory"):
        evaluate(settings(checkpoint, out=str(tmp_path / "file" / "out")))


@pytest.mark.parametrize(
    ("draft", "params", "message"),
    [
        ("early_exit", {"exit_layer": 0}, r"draft_params.exit_layer: must be >= 1 \(got 0\)"),
        ("early_exit:ngram", {"gama": 2}, r"draft_params.gama: .*gamma"),
        ("early_exit", {"gamma": "many"}, "draft_params.gamma: "),
    ],
)
def test_wrong_parameters_are_refused_before_loading(
    checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    draft: str,
    params: dict[str, Any],
    message: str,
) -> None:
    monkeypatch.setattr("ssd_infer.load", lambda *_, **__: pytest.fail("loaded"))
    with pytest.raises(ConfigError, match=message):
        evaluate(settings(checkpoint, out=str(tmp_path), draft=draft, draft_params=params))


def test_libraries_are_quiet_during_an_evaluation(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.utils import logging

    seen: list[int] = []

    def open_nothing(*_: Any) -> Any:
        seen.append(logging.get_verbosity())
        raise DataError("enough seen")

    monkeypatch.setattr(causal_kind, "open_context", open_nothing)
    before = logging.get_verbosity()
    with pytest.raises(DataError, match="enough seen"):
        evaluate(settings(checkpoint, out=str(tmp_path)))
    assert (seen, logging.get_verbosity()) == ([logging.ERROR], before)
    assert before < logging.ERROR


def test_series_skips_what_is_reported_and_compares(
    full: dict[str, Any], checkpoint: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run, calls = tmp_path / "run", []
    for step in (10, 9):
        folder = run / "checkpoints" / f"step-{step}"
        build_model(layers=3, seed=step).save_pretrained(folder)

    def fake(wanted: EvalSettings) -> dict[str, Any]:
        calls.append(Path(wanted.checkpoint).name)
        report = json.loads(json.dumps(full))
        report["identity"] |= {
            "checkpoint": wanted.checkpoint,
            "weights_sha256": weights_sha256(wanted.checkpoint),
            "step": 10,
        }
        from ssd_infer.report.write import write_report

        write_report(report, Path(str(wanted.out)))
        return report

    for name in ("step-011", "step-²", "step-10.bak"):
        shutil.copytree(run / "checkpoints" / "step-10", run / "checkpoints" / name)
    shutil.copytree(run / "checkpoints" / "step-10", run / "checkpoints" / "step-12")
    (run / "checkpoints" / "step-12" / "ssd.json").write_text('{"step": 10}')
    assert [path.name for path in find_checkpoints(run)] == ["step-9", "step-10"]
    assert caplog.text.count("it is passed over") == 4
    first = evaluate_run(run, settings(checkpoint), fake, lambda _: None)
    again = evaluate_run(run, settings(checkpoint), fake, lambda _: None)
    assert calls == ["step-9", "step-10"]
    assert first == again
    assert first.exit_code == 0
    build_model(layers=3, seed=99).save_pretrained(run / "checkpoints" / "step-9")
    evaluate_run(run, settings(checkpoint), fake, lambda _: None)
    assert calls == ["step-9", "step-10", "step-9"]
    comparison = json.loads((run / "reports" / "comparison.json").read_text())
    assert comparison["labels"] == ["step-9", "step-10"]
    assert "early_exit" in comparison["series"]["speedup"]
    assert (run / "reports" / "comparison.md").read_text().startswith("# Comparison")
    assert (run / "reports" / "comparison.html").exists()


def test_a_model_gone_to_nan_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    model = build_model(layers=3, eos_token_id=2)
    model.model.norm.weight.data.fill_(float("nan"))
    model.save_pretrained(tmp_path / "m")
    wanted = settings(checkpoint, checkpoint=str(tmp_path / "m"), out=str(tmp_path / "r"))
    with pytest.raises(CheckpointError, match="not finite"):
        evaluate(wanted)
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["/x/ssd_infer/__main__.py", "checkpoint=a b"], "python -m ssd_infer 'checkpoint=a b'"),
        (["ssd-eval", "checkpoint=a"], "ssd-eval checkpoint=a"),
    ],
)
def test_command_can_be_repeated(arguments: list[str], command: str) -> None:
    assert command_line(arguments) == command

"""What a run leaves behind, and how it ends when it cannot start."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from ssd_infer.checkpoint.provenance import command_line, weights_sha256
from ssd_infer.config.evaluation import EvalSettings
from ssd_infer.errors import ConfigError, DataError, SSDError
from ssd_train import run
from ssd_train.config.schema import EvalConfig, HFModelConfig
from ssd_train.data.tokenizer import vocabulary_hash
from ssd_train.runs import arguments
from ssd_train.runs.arguments import on_device, training_arguments
from ssd_train.runs.reports import Reporter
from tests.report.sample import sample_report
from tests.train.support import tiny_root, with_train


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run.train(tiny_root(tmp_path_factory.mktemp("finished"), max_steps=4, save_steps=2))


def test_the_run_directory_holds_what_design_promises(finished: Path) -> None:
    assert finished.parts[-2:] == ("layerskip", "default")
    assert {path.name for path in finished.glob("checkpoints/*")} == {"step-2", "step-4"}
    assert yaml.safe_load((finished / "config.yaml").read_text())["recipe"]["early_exit"]["period"] == 2
    assert (finished / "command.txt").read_text() == command_line(sys.argv) + "\n"
    assert (finished / json.loads((finished / "best.json").read_text())["path"]).is_dir()


def test_a_checkpoint_is_a_plain_directory_that_knows_where_it_comes_from(finished: Path) -> None:
    path = finished / "checkpoints" / "step-4"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)
    assert all("wrapped" not in name and "forward" not in name for name in model.state_dict())
    ids = tokenizer("alpha beta gamma", return_tensors="pt").input_ids
    plain = model.generate(ids, max_new_tokens=8, do_sample=False)
    early = model.generate(ids, max_new_tokens=8, do_sample=False, assistant_early_exit=2)
    assert torch.equal(plain, early)
    record = json.loads((path / "ssd.json").read_text())
    assert record["step"] == 4
    assert record["recipe"]["name"] == "layerskip"
    assert record["recipe"]["settings"]["layer_dropout"]["p_max"] == 0.4
    assert set(record["exit_agreement"]) == {"1", "2", "3"}
    assert record["validation_loss"] > 0
    assert {"config_hash", "versions", "machine"} <= set(record["provenance"])
    assert record["provenance"]["tokenizer_hash"] == vocabulary_hash(tokenizer)
    assert yaml.safe_load((path / "config.yaml").read_text()) == yaml.safe_load(
        (finished / "config.yaml").read_text()
    )
    assert not (path / "training_args.bin").exists()


def test_a_checkpoint_can_be_trained_further_as_a_model(finished: Path, tmp_path: Path) -> None:
    cfg = tiny_root(tmp_path, max_steps=1)
    cfg.model = HFModelConfig(name=str(finished / "checkpoints" / "step-4"))
    done = run.train(cfg)
    assert (done / "checkpoints" / "step-1" / "model.safetensors").exists()


def test_the_plain_twin_runs_and_measures_its_exits(tmp_path: Path) -> None:
    done = run.train(tiny_root(tmp_path, plain=True, max_steps=2, logging_steps=1))
    lines = [json.loads(line) for line in (done / "metrics.jsonl").read_text().splitlines()]
    assert set(lines[0]) >= {"loss", "final_loss"}
    assert not any(name.startswith("exit_") for name in lines[0])
    assert "eval_exit_2_agreement" in lines[-1]


def test_bfloat16_trains_with_float32_weights(tmp_path: Path) -> None:
    done = run.train(replace(tiny_root(tmp_path, max_steps=2, logging_steps=1), dtype="bfloat16"))
    lines = [json.loads(line) for line in (done / "metrics.jsonl").read_text().splitlines()]
    assert all(0 < line["loss"] < 10 for line in lines)
    model = AutoModelForCausalLM.from_pretrained(done / "checkpoints" / "step-2")
    assert model.dtype == torch.float32


def test_activation_checkpointing_changes_nothing_that_is_learned(finished: Path, tmp_path: Path) -> None:
    cfg = tiny_root(tmp_path, max_steps=4, save_steps=2, activation_checkpointing=True)
    done = run.train(cfg)
    for left, right in zip(
        *((path / "metrics.jsonl").read_text().splitlines() for path in (finished, done)), strict=True
    ):
        assert json.loads(left)["eval_loss" if "eval_loss" in left else "loss"] == pytest.approx(
            json.loads(right)["eval_loss" if "eval_loss" in right else "loss"], rel=1e-5
        )


def test_a_dry_run_leaves_no_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cfg = replace(tiny_root(tmp_path), dry_run=True)
    run.train(cfg)
    assert "dry run: one step trained" in capsys.readouterr().out
    assert not cfg.run_dir.exists()
    assert [path.name for path in Path(cfg.output_root).iterdir()] == [".cache"]


def test_too_little_data_for_a_batch_is_refused(tmp_path: Path) -> None:
    cfg = with_train(tiny_root(tmp_path), batch_size=100_000)
    with pytest.raises(DataError, match=r"train\.batch_size: .*100000 samples"):
        run.train(cfg)
    assert not (cfg.run_dir / "checkpoints").exists()


def fake_evaluation(monkeypatch: pytest.MonkeyPatch, seen: list[EvalSettings], *, fail: bool = False) -> None:
    def evaluate(settings: EvalSettings) -> dict[str, Any]:
        seen.append(settings)
        if fail:
            raise SSDError("no prompts")
        out = Path(str(settings.out))
        out.mkdir(parents=True, exist_ok=True)
        report = sample_report()
        report["identity"]["weights_sha256"] = weights_sha256(settings.checkpoint)
        (out / "report.json").write_text(json.dumps(report))
        return {}

    monkeypatch.setattr("ssd_infer.evaluation.alone.evaluate_alone", evaluate)


@pytest.mark.parametrize("every", [False, True])
def test_reports_are_written_where_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], every: bool
) -> None:
    seen: list[EvalSettings] = []
    fake_evaluation(monkeypatch, seen)
    cfg = tiny_root(tmp_path, max_steps=4, save_steps=2)
    cfg.eval = EvalConfig(enabled=True, every_checkpoint=every, samples=3)
    done = run.train(cfg)
    final = str(done / "checkpoints" / "step-4")
    assert [settings.checkpoint for settings in seen].count(final) == 1
    if every:
        assert seen[0].checkpoint == str(done / "checkpoints" / "step-2")
    assert all(settings.samples == 3 for settings in seen)
    printed = capsys.readouterr().out
    assert "early exit" in printed
    assert "report.html" in printed
    count = len(seen)
    run.train(cfg)
    assert len(seen) == count
    report = done / "reports" / "step-4" / "report.json"
    report.write_text(json.dumps(sample_report()))  # of other weights, under this checkpoint's name
    run.train(cfg)
    assert len(seen) == count + 1


def test_a_failing_report_does_not_stop_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fake_evaluation(monkeypatch, [], fail=True)
    cfg = tiny_root(tmp_path, max_steps=2, save_steps=1)
    cfg.eval = EvalConfig(enabled=True, every_checkpoint=True)
    with pytest.raises(SSDError, match="no prompts"):
        run.train(cfg)
    assert "report of step 1 failed; training goes on" in caplog.text
    assert (cfg.run_dir / "checkpoints" / "step-2").is_dir()


def test_reports_on_the_way_do_not_change_what_is_learned(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def evaluate(settings: EvalSettings) -> None:
        torch.manual_seed(1)
        torch.rand(7)
        np.random.seed(1)  # noqa: NPY002 - the generator transformers saves
        random.seed(1)
        torch.set_num_threads(2)
        Path(str(settings.out)).mkdir(parents=True)
        (Path(str(settings.out)) / "report.json").write_text(json.dumps(sample_report()))

    monkeypatch.setattr("ssd_infer.evaluation.alone.evaluate_alone", evaluate)
    cfg = tiny_root(tmp_path, max_steps=4, save_steps=2)
    cfg.eval = EvalConfig(enabled=True, every_checkpoint=True)
    done = run.train(cfg)
    for name in ("rng_state.pth", "model.safetensors"):
        files = [path / "checkpoints" / "step-4" / name for path in (finished, done)]
        if name.endswith("pth"):
            left, right = (torch.load(file, weights_only=False) for file in files)
            assert torch.equal(left["cpu"], right["cpu"])
            assert left["python"] == right["python"]
        else:
            assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize(
    ("root", "name"), [("afile", "default"), ("/proc/nowhere", "default"), ("out", "x" * 300)]
)
def test_a_run_directory_the_system_refuses_is_one_sentence(tmp_path: Path, root: str, name: str) -> None:
    (tmp_path / "afile").touch()
    with pytest.raises(SSDError, match=r"output_root: the run directory cannot be used \(got "):
        run.train(replace(tiny_root(tmp_path), output_root=str(tmp_path / root), run_name=name))


def test_a_device_that_is_not_there_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    cfg = replace(tiny_root(tmp_path), dtype="float16")
    with pytest.raises(ConfigError) as caught:
        run.train(replace(cfg, device="cuda"))
    assert [problem.key for problem in caught.value.problems] == ["device", "dtype"]
    assert "device=cpu" in str(caught.value)
    for device in ("cpu", "auto"):
        with pytest.raises(ConfigError, match=r"dtype: needs an accelerator .*bfloat16"):
            run.train(replace(cfg, device=device))
    assert not cfg.run_dir.exists()


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_bfloat16_needs_no_accelerator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    cfg = replace(tiny_root(tmp_path), dtype="bfloat16", device=device)
    assert training_arguments(on_device(cfg), cfg.run_dir).use_cpu


@pytest.mark.parametrize(("bf16", "key"), [(False, "dtype"), (True, None)])
def test_auto_is_resolved_before_dtype_and_engine_are_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bf16: bool, key: str | None
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(arguments, "is_torch_bf16_gpu_available", lambda: bf16)
    cfg = replace(tiny_root(tmp_path), dtype="bfloat16", device="auto")
    if key is None:
        assert on_device(cfg).device == "cuda"
        with pytest.raises(ConfigError, match="CUDA_VISIBLE_DEVICES=1"):
            on_device(replace(cfg, device="cuda:1"))
        return
    with pytest.raises(ConfigError, match=f"{key}: is nothing device=cuda can compute in"):
        on_device(cfg)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"draft": "early_exit", "draft_params": {"exit_layer": 2, "gama": 4}}, "eval.draft_params.gama"),
        ({"draft": "early_exit", "draft_params": {"gamma": 0}}, "eval.draft_params.gamma"),
        ({"draft": "ctc_draft"}, "eval.draft"),
    ],
)
def test_a_report_that_would_be_refused_is_refused_before_the_training(
    tmp_path: Path, changes: dict[str, Any], key: str
) -> None:
    cfg = tiny_root(tmp_path)
    cfg = replace(cfg, eval=replace(cfg.eval, enabled=True, **changes))
    with pytest.raises(ConfigError) as caught:
        run.train(cfg)
    assert [problem.key for problem in caught.value.problems] == [key]
    assert not cfg.run_dir.exists()


def test_a_prompt_file_that_would_be_refused_is_refused_before_the_training(tmp_path: Path) -> None:
    cfg = tiny_root(tmp_path)
    path = tmp_path / "question.jsonl"
    path.write_text('{"category": "qa", "turns": []}\n')
    asked = replace(cfg.eval, enabled=True, tasks=["auto", f"spec_bench:{path}"])
    with pytest.raises(DataError, match=r"^eval\.tasks: .*question\.jsonl:1: turns must be a list"):
        run.train(replace(cfg, eval=asked))
    assert not cfg.run_dir.exists()


def test_a_report_gets_every_option_the_run_was_given(tmp_path: Path) -> None:
    cfg = tiny_root(tmp_path)
    given = {"temperatures": [0.7], "batch_size": 4, "top_p": 0.9, "peers": False, "tasks": ["copy"]}
    cfg = replace(cfg, seed=3, eval=replace(cfg.eval, **given))
    found = Reporter(cfg, tmp_path, None).settings(tmp_path / "step-1", tmp_path / "out")  # type: ignore[arg-type]
    assert {name: getattr(found, name) for name in given} == given
    assert (found.seed, found.threads, found.samples) == (3, cfg.threads, cfg.eval.samples)

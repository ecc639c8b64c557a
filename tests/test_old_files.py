"""Files that an earlier version wrote are read, compared, loaded and resumed (`fixtures/before_house/README.md`)."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import ssd_infer
from ssd_infer.checkpoint.manifest import damage
from ssd_infer.compare import main as compare_main
from ssd_infer.config.evaluation import EvalSettings
from ssd_infer.engine.target import Target
from ssd_infer.evaluation import evaluate
from ssd_infer.offload.offload import load_offloaded
from ssd_infer.report.format import readable
from ssd_infer.report.html import render_html
from ssd_infer.report.markdown import render_markdown
from ssd_infer.report.rows import find_row
from ssd_infer.report.write import read_report
from ssd_infer.strategies.ctc_draft.saved_thresholds import thresholds_of
from ssd_infer.strategies.skip_layers import saved_search as store

OLD = Path(__file__).parent / "fixtures" / "before_house"
ROOT = Path(__file__).parent.parent
KINDS = ("text", "diffusion", "speech")
STEP = Path("layerskip/run/checkpoints/step-3")
MOST_BYTES, LARGEST = 1_500_000, 500_000


def prompts() -> list[list[int]]:
    lines = (OLD / "text" / "prompts.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line)["ids"] for line in lines]


def test_the_files_are_small_and_from_no_one_machine() -> None:
    files = [path for path in OLD.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MOST_BYTES
    assert max(path.stat().st_size for path in files) < LARGEST
    for path in files:
        assert b"/work/" not in path.read_bytes(), path
        assert b"/home/" not in path.read_bytes(), path


@pytest.mark.parametrize("kind", KINDS)
def test_a_report_of_schema_version_1_is_read_and_shown(kind: str) -> None:
    report = read_report(OLD / kind / "report.json")
    assert json.loads((OLD / kind / "report.json").read_text("utf-8"))["schema_version"] == "1.0"
    expected = {"text": "early_exit", "diffusion": "fewer_steps", "speech": "ctc_draft:lossless"}[kind]
    row = find_row(report, expected)
    assert row is not None
    assert (row["status"], row["lossless"]["verdict"]) == ("ok", "pass")
    assert readable(expected) in render_markdown(report)
    assert "<html" in render_html(report)


@pytest.mark.parametrize("kind", KINDS)
def test_old_reports_are_compared(kind: str, tmp_path: Path) -> None:
    report = json.loads((OLD / kind / "report.json").read_text("utf-8"))
    for row in report["strategies"]:
        if row["status"] == "ok":
            row["lossless"]["verdict"] = "fail"
    (tmp_path / "worse.json").write_text(json.dumps(report), "utf-8")
    old, worse, out = str(OLD / kind / "report.json"), str(tmp_path / "worse.json"), tmp_path / "out.json"
    assert compare_main([old, old, "--strict"]) == 0
    assert compare_main([old, worse, "--strict", "--json", str(out)]) == 1
    assert json.loads(out.read_text("utf-8"))["regressions"]


def test_a_report_of_today_is_compared_with_an_old_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted: dict[str, Any] = {
        "checkpoint": str(OLD / "text" / STEP),
        "tasks": [f"file:{OLD / 'text' / 'prompts.jsonl'}"],
        "out": str(tmp_path / "new"),
        "samples": 3,
        "max_new_tokens": 12,
        "repeats": 1,
        "device": "cpu",
        "threads": 1,
        "grid": False,
        "temperatures": [0.0],
        "draft": "early_exit",
        "draft_params": {"exit_layer": 1, "gamma": 3},
    }
    evaluate(EvalSettings(**wanted))
    assert compare_main([str(OLD / "text" / "report.json"), str(tmp_path / "new" / "report.json")]) == 0
    assert "early exit" in capsys.readouterr().out


def test_the_text_checkpoint_is_intact_and_decodes() -> None:
    assert damage(OLD / "text" / STEP) is None
    loaded = ssd_infer.load(OLD / "text" / STEP, dtype="float32", device="cpu")
    assert loaded.tokenizer is not None
    plain = ssd_infer.generate(loaded, prompts(), max_new_tokens=12)
    params = {"exit_layer": 1, "gamma": 3}
    drafted = ssd_infer.generate(
        loaded, prompts(), draft="early_exit", draft_params=params, max_new_tokens=12
    )
    assert drafted.sequences == plain.sequences
    rows = read_report(OLD / "text" / "report.json")
    assert rows["identity"]["weights_sha256"] == sha256(OLD / "text" / STEP / "model.safetensors")


def test_the_diffusion_checkpoint_decodes() -> None:
    loaded = ssd_infer.load(OLD / "diffusion" / "model", dtype="float64", device="cpu")
    plain = ssd_infer.generate(loaded, prompts(), max_new_tokens=12)
    params = {"drafter": "ssd_chain", "gamma": 3}
    drafted = ssd_infer.generate(
        loaded, prompts(), draft="fewer_steps", draft_params=params, max_new_tokens=12
    )
    assert drafted.sequences == plain.sequences
    assert drafted.draft == "fewer_steps"


def test_the_speech_checkpoint_transcribes_with_its_saved_thresholds() -> None:
    folder = OLD / "speech" / "run" / "checkpoints" / "step-4"
    loaded = ssd_infer.load(folder, dtype="float32", device="cpu")
    saved = json.loads((folder / "ssd_ctc_draft.json").read_text("utf-8"))["thresholds"]
    assert saved["theta_ctc"] is not None
    assert thresholds_of(loaded.model) == pytest.approx(saved)
    waves = sorted(map(str, (OLD / "speech" / "run" / "heldout" / "test").glob("*.wav")))
    assert len(waves) == 3
    plain = ssd_infer.transcribe(loaded, waves)
    lossless = ssd_infer.transcribe(loaded, waves, draft="ctc_draft:lossless")
    assert lossless.texts == plain.texts
    found = ssd_infer.transcribe(loaded, waves, draft="ctc_draft")
    assert found.draft_params["theta_ctc"] == pytest.approx(saved["theta_ctc"])


@pytest.fixture
def searched(tmp_path: Path) -> Path:
    """Return a copy of the text checkpoint with its search result beside it."""
    folder = tmp_path / "step-3"
    shutil.copytree(OLD / "text" / STEP, folder)
    shutil.copy(OLD / "text" / "ssd_skip_set.json", folder)
    return folder


def test_a_search_result_is_read_and_judged_by_where_it_was_made(searched: Path) -> None:
    loaded = ssd_infer.load(searched, dtype="float32", device="cpu")
    target = Target.of(loaded.model)
    found, reason = store.load(searched, target, do_sample=False)
    assert found is not None or "does not hold here" in reason, reason
    assert "damaged" not in reason
    assert "version" not in reason or "torch" in reason or "transformers" in reason


def test_a_search_result_made_where_we_are_holds(searched: Path) -> None:
    """Only what belongs to the machine is put right; the old digest of the weights must still be theirs."""
    loaded = ssd_infer.load(searched, dtype="float32", device="cpu")
    target = Target.of(loaded.model)
    path = searched / "ssd_skip_set.json"
    record = json.loads(path.read_text("utf-8"))
    entry, here = record["results"][0], store.search_environment(target, do_sample=False)
    assert entry["where"]["weights"] == here["weights"]
    entry["where"] = here
    path.write_text(json.dumps(record), "utf-8")
    found, reason = store.load(searched, target, do_sample=False)
    assert found is not None, reason
    assert (found.method, sorted(found.skips.mlp)) == ("dp", entry["skip_mlp"])


def test_an_expert_store_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "experts"
    shutil.copytree(OLD / "experts", folder)
    whole = ssd_infer.load(folder, dtype="float32", device="cpu")
    offloaded = load_offloaded(folder, 0.75, device="cpu")
    rows = [[5, 9, 40, 41], [7, 3]]
    expected = ssd_infer.generate(whole, rows, max_new_tokens=10, eos_token_id=[])
    assert ssd_infer.generate(offloaded, rows, max_new_tokens=10, eos_token_id=[]).sequences == (
        expected.sequences
    )


@pytest.mark.integration
def test_a_run_goes_on_from_its_checkpoint_as_it_would_have(tmp_path: Path) -> None:
    """The command in the run's own command.txt, again: steps 4 to 6 lose what they lost in one go.

    The run knew nothing of marks around documents; the two settings say what it did, as its refusal would ask for.
    """
    work = tmp_path / "text"
    shutil.copytree(OLD / "text", work)
    run = work / "layerskip" / "run"
    command = shlex.split((run / "command.txt").read_text("utf-8"))
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command[1:], "data.add_bos=false", "data.control_tokens=parse"],
        cwd=work,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    losses = {str(line["step"]): line["loss"] for line in lines if "loss" in line}
    assert losses == pytest.approx(json.loads((work / "losses.json").read_text("utf-8")), rel=1e-6)
    kept = [json.loads(line) for line in (OLD / "text" / STEP.parent.parent / "metrics.jsonl").open()]
    assert lines[: len(kept)] == kept, "what was logged before stays as it was"
    assert torch.load(run / "checkpoints" / "step-6" / "optimizer.pt", weights_only=True)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()

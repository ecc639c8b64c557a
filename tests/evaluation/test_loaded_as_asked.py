"""A report is about what was loaded: adapters, places of modules and attention backends among it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from ssd_infer.checkpoint.provenance import weights_sha256
from ssd_infer.config.evaluation import EvalSettings
from ssd_infer.errors import ConfigError
from ssd_infer.evaluation import evaluate
from tests.conftest import build_model
from tests.registered import know_only


@pytest.fixture(scope="module", autouse=True)
def few_strategies() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        know_only(patch, ("early_exit", "ngram"))
        yield


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    build_model(layers=3, eos_token_id=2).save_pretrained(folder)
    prompts = [[5 + (7 * i * j + j) % 90 for j in range(8)] for i in range(1, 4)]
    (folder / "prompts.jsonl").write_text("\n".join(json.dumps({"ids": ids}) for ids in prompts))
    return folder


def report_of(folder: Path, **changes: Any) -> dict[str, Any]:
    base = {
        "checkpoint": str(folder),
        "tasks": [f"file:{folder}/prompts.jsonl"],
        "samples": 2,
        "max_new_tokens": 8,
        "threads": 1,
        "grid": False,
        "peers": False,
        "temperatures": [0.0],
    }
    return evaluate(EvalSettings(**(base | changes)))


def check_passed(report: dict[str, Any]) -> None:
    """Every lossless row that ran passed, and some did."""
    verdicts = [row["lossless"]["verdict"] for row in report["strategies"] if row["status"] == "ok"]
    assert verdicts
    assert set(verdicts) == {"pass"}


def test_a_report_on_an_adapter_names_it_among_the_weights(checkpoint: Path, tmp_path: Path) -> None:
    torch.manual_seed(1)
    config = LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["q_proj"], init_lora_weights=False)
    get_peft_model(build_model(layers=3, eos_token_id=2), config).save_pretrained(tmp_path)  # type: ignore[arg-type]
    report = report_of(checkpoint, adapter=str(tmp_path))
    check_passed(report)
    identity = report["identity"]
    assert identity["weights_sha256"] not in (weights_sha256(checkpoint), weights_sha256(tmp_path))
    assert identity["extra"]["loading"] == {"adapter": str(tmp_path)}
    assert (tmp_path / "report" / "report.json").is_file()
    plain = report_of(checkpoint, out=str(tmp_path / "plain"))
    assert plain["identity"]["weights_sha256"] == weights_sha256(checkpoint)
    assert "loading" not in plain["identity"]["extra"]


def test_a_report_on_a_model_partly_on_disk(checkpoint: Path, tmp_path: Path) -> None:
    parts = ("model.embed_tokens", "model.layers.0", "model.layers.1", "model.layers.2", "model.norm")
    places = dict.fromkeys((*parts, "model.rotary_emb", "lm_head"), "cpu")
    places |= dict.fromkeys(("model.layers.1", "model.embed_tokens", "lm_head"), "disk")
    report = report_of(
        checkpoint, device_map=places, offload_folder=str(tmp_path / "away"), out=str(tmp_path / "out")
    )
    check_passed(report)
    assert report["identity"]["extra"]["loading"]["device_map"] == places


def test_a_report_says_which_backend_was_replaced(checkpoint: Path, tmp_path: Path) -> None:
    report = report_of(checkpoint, attn_implementation="flash_attention_2", out=str(tmp_path))
    check_passed(report)
    assert any("sdpa took its place" in line for line in report["verdict"]["warnings"])


def test_a_diffusion_report_refuses_what_it_is_not_loaded_with(tmp_path: Path) -> None:
    from tests.families.diffusion.support import build

    build(0).save_pretrained(tmp_path)
    (tmp_path / "prompts.jsonl").write_text(json.dumps({"ids": [2, 3]}))
    with pytest.raises(ConfigError, match="device_map: is for causal language models"):
        report_of(tmp_path, device_map="auto")

"""Keys that say how a checkpoint is loaded: as typed on the command line, checked before torch is there."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from ssd_infer.__main__ import _as_directory, settings_of
from ssd_infer.checkpoint.provenance import command_line
from ssd_infer.config.evaluation import EvalSettings
from ssd_infer.errors import CheckpointError, ConfigError


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Return a directory that looks like a checkpoint to the configuration."""
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


GIVEN = {
    "nothing": ([], {}),
    "backend": (["attn_implementation=eager"], {"attn_implementation": "eager"}),
    "auto": (["device_map=auto"], {"device_map": "auto"}),
    "places": (
        ["device_map={model.layers.0: cpu, model.layers.1: disk}", "offload_folder=x"],
        {"device_map": {"model.layers.0": "cpu", "model.layers.1": "disk"}, "offload_folder": "x"},
    ),
    "memory": (
        ["device_map=auto", "max_memory={0: 2GB, cpu: 8GB}"],
        {"device_map": "auto", "max_memory": {0: "2GB", "cpu": "8GB"}},
    ),
    "quantised": (
        ["quantization_config.quant_method=torchao", "quantization_config.quant_type=Int8WeightOnlyConfig"],
        {"quantization_config": {"quant_method": "torchao", "quant_type": "Int8WeightOnlyConfig"}},
    ),
    "quantised at once": (
        ["quantization_config={quant_method: quanto, weights: int8}"],
        {"quantization_config": {"quant_method": "quanto", "weights": "int8"}},
    ),
    "hub": (["cache_dir=x", "token=secret"], {"cache_dir": "x", "token": "secret"}),
}


@pytest.mark.parametrize("case", GIVEN)
def test_keys_arrive_as_options(compose, checkpoint, case):
    overrides, expected = GIVEN[case]
    settings = settings_of(compose(f"checkpoint={checkpoint}", *overrides, name="evaluate"))
    assert settings.loading().given() == expected
    again = EvalSettings(**json.loads(json.dumps(asdict(settings))))
    assert again.loading() == settings.loading(), "the process that measures gets them as JSON"


REFUSED = {
    "device twice": (["device_map=auto", "device=cpu"], "device"),
    "memory of nothing": (["max_memory={cpu: 1GB}"], "max_memory"),
    "no method": (["quantization_config.bits=4"], "quantization_config"),
    "no adapter": (["adapter=nowhere/at/all"], "adapter"),
    "a revision of a directory": (["revision=main"], "revision"),
    "no such file": (["gguf_file=tiny.gguf"], "gguf_file"),
    "experts on disk": (["expert_budget=0.5", "device_map=auto"], "device_map"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_by_its_key(compose, checkpoint, case):
    overrides, key = REFUSED[case]
    with pytest.raises(ConfigError) as caught:
        settings_of(compose(f"checkpoint={checkpoint}", *overrides, name="evaluate"))
    assert [problem.key for problem in caught.value.problems] == [key]


def test_misspelt_keys_are_told_their_names(evaluate, checkpoint):
    result = evaluate(
        f"checkpoint={checkpoint}",
        "revison=main",
        "quantization_config.quant_metod=torchao",
        "attn_implementaton=eager",
    )
    assert result.code == 2
    for name in ("revision", "quant_method", "attn_implementation"):
        assert f"did you mean '{name}'?" in result.err


def test_adapters_and_gguf_files_are_told_apart_from_checkpoints(evaluate, tmp_path):
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    assert "that is an adapter: give its model as the checkpoint, and adapter=adapter" in evaluate(
        "checkpoint=adapter"
    ).err.replace("\n", " ").replace("  ", " ")
    (tmp_path / "gguf").mkdir()
    (tmp_path / "gguf" / "tiny.gguf").write_text("")
    assert "try gguf_file=tiny.gguf" in evaluate("checkpoint=gguf").err


def test_a_name_on_the_hub_becomes_a_directory(tmp_path):
    """As the hub's client caches it; its report does not go into the cache."""
    sha, place = "a" * 40, tmp_path / "hub" / "models--someone--tiny"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text(sha)
    (place / "snapshots" / sha).mkdir(parents=True)
    (place / "snapshots" / sha / "config.json").write_text("{}")
    given = EvalSettings(checkpoint="someone/tiny", revision="main", cache_dir=str(tmp_path / "hub"))
    found = _as_directory(given)
    assert Path(found.checkpoint) == place / "snapshots" / sha
    assert found.out == "reports/someone--tiny-main"
    assert found.revision is None
    other = EvalSettings(checkpoint="someone/tiny", revision="other", cache_dir=str(tmp_path / "hub"))
    with pytest.raises(CheckpointError, match="'someone/tiny' cannot be had from the hub"):
        _as_directory(other)


def test_a_report_does_not_show_the_token():
    line = command_line(["/x/ssd_infer/__main__.py", "checkpoint=a/b", "token=hf_secret", "revision=main"])
    assert line == "python -m ssd_infer checkpoint=a/b token=... revision=main"

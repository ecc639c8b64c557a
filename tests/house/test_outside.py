"""A strategy and a recipe in packages of their own, installed by entry point, are used like ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.conftest import build_model

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.integration

GENERATE = """
import sys, ssd_infer
model = ssd_infer.load(sys.argv[1])
rows = [[5, 6, 7, 5, 6, 7, 5], [9, 8, 9]]
plain = ssd_infer.generate(model, rows, max_new_tokens=24)
out = ssd_infer.generate(model, rows, draft="repeat_last", draft_params={"k": 3}, max_new_tokens=24)
assert out.sequences == plain.sequences, (out.sequences, plain.sequences)
assert out.draft == "repeat_last" and out.stats.total.drafted > 0
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an environment with both example packages installed; everything else is borrowed."""
    folder = tmp_path_factory.mktemp("outside") / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    version = f"python3.{sys.version_info.minor}"
    (folder / "lib" / version / "site-packages" / "borrowed.pth").write_text(
        f"{sysconfig.get_path('purelib')}\n{ROOT}\n", encoding="utf-8"
    )
    found = folder / "bin" / "python"
    for name in ("own_strategy", "own_recipe"):
        command = [sys.executable, "-m", "pip", "--python", str(found), "install", "--quiet", "--no-deps"]
        command += ["--no-build-isolation", "--disable-pip-version-check", str(ROOT / "examples" / name)]
        subprocess.run(command, check=True)
    return found


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    build_model(layers=2, eos_token_id=2).save_pretrained(folder)
    prompts = [[5, 6, 7, 5, 6, 7, 5, 6], [9, 8, 9, 8, 9, 8]]
    (folder / "prompts.jsonl").write_text("\n".join(json.dumps({"ids": ids}) for ids in prompts))
    return folder


def run(python: Path, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [str(python), *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_a_strategy_from_outside_decodes(python: Path, checkpoint: Path, tmp_path: Path) -> None:
    done = run(python, "-c", GENERATE, str(checkpoint), folder=tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_strategy_from_outside_is_reported_and_compared(
    python: Path, checkpoint: Path, tmp_path: Path
) -> None:
    tasks = f"tasks=[file:{checkpoint / 'prompts.jsonl'}]"
    size = (
        "samples=2",
        "repeats=1",
        "max_new_tokens=12",
        "grid=false",
        "max_minutes=1",
        "temperatures=[0]",
        "peers=false",
    )
    asked = (
        "-m",
        "ssd_infer",
        f"checkpoint={checkpoint}",
        "draft=all",
        tasks,
        *size,
        f"out={tmp_path / 'new'}",
    )
    done = run(python, *asked, folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "new" / "report.json").read_text())
    assert report["schema_version"] == "2.0"
    row = next(row for row in report["strategies"] if row["name"] == "repeat_last")
    assert row["status"] == "ok"
    assert row["family"] == "repetition"
    assert row["lossless"]["verdict"] == "pass"
    if not row["extra"]["fell_back_to_plain"]:
        assert row["extra"]["tables"][0]["columns"] == ["right guesses", "rounds"]
        assert row["extra"]["plots"][0]["kind"] == "bar"
        for name in ("report.md", "report.html"):
            assert "repeat last: Right guesses" in (tmp_path / "new" / name).read_text()
    older = json.loads((ROOT / "tests" / "report" / "report_v1.json").read_text())
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "report.json").write_text(json.dumps(older))
    compared = run(python, "-m", "ssd_infer.compare", "old/report.json", "new/report.json", folder=tmp_path)
    assert "repeat last" in compared.stdout, compared.stdout + compared.stderr


def test_a_strategy_from_outside_is_an_option_of_the_command(
    python: Path, checkpoint: Path, tmp_path: Path
) -> None:
    tasks = f"tasks=[file:{checkpoint / 'prompts.jsonl'}]"
    shown = run(
        python,
        *("-m", "ssd_infer", f"checkpoint={checkpoint}", "draft=repeat_last", tasks, "--cfg", "job"),
        folder=tmp_path,
    )
    assert "draft: repeat_last" in shown.stdout, shown.stdout + shown.stderr
    wrong = run(python, "-m", "ssd_infer", f"checkpoint={checkpoint}", "draft=repeat_lst", folder=tmp_path)
    assert wrong.returncode == 2
    assert "repeat_last" in wrong.stderr


def test_a_recipe_from_outside_trains_and_its_keys_are_checked(python: Path, tmp_path: Path) -> None:
    small = ("model=tiny", "data.block_size=64", "train.max_steps=2", "train.batch_size=2", "tracking=none")
    start = ("-m", "ssd_train", "+recipe=small_logits", *small, "eval.enabled=false", "train.logging_steps=1")
    wrong = run(python, *start, "recipe.z_wieght=1", folder=tmp_path)
    assert wrong.returncode == 2
    assert "recipe.z_wieght" in wrong.stderr
    assert "z_weight" in wrong.stderr.partition("did you mean")[2]
    broken = run(python, *start, "recipe.z_weight=-1", folder=tmp_path)
    assert "recipe.z_weight: must be at least 0" in broken.stderr
    done = run(python, *start, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "outputs" / "small_logits" / "default" / "metrics.jsonl").read_text().splitlines()
    assert any("z_loss" in json.loads(line) for line in lines)


def test_nothing_here_names_the_examples() -> None:
    for top in ("ssd_infer", "ssd_train", "conf"):
        for path in (ROOT / top).rglob("*"):
            if path.suffix in (".py", ".yaml", ".json"):
                text = path.read_text("utf-8")
                assert "repeat_last" not in text
                assert "small_logits" not in text

"""The three ways to have the toolkit: uninstalled checkout, editable install, wheel; each from a foreign directory."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from ssd_infer.config.compose import config_directory
from ssd_infer.corpus.categories import CATEGORIES
from tests.commands import CHECKOUT, option_names, run_module

pytestmark = pytest.mark.integration


def copy_checkout(target: Path) -> Path:
    """Copy what a build needs, so that the real tree stays clean."""
    for name in ("conf", "ssd_infer", "ssd_train"):
        shutil.copytree(CHECKOUT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(CHECKOUT / name, target / name)
    return target


def environment(folder: Path) -> Path:
    """Make an environment that borrows the installed dependencies; return its python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    borrowed = folder / "lib" / f"python3.{sys.version_info.minor}" / "site-packages" / "borrowed.pth"
    borrowed.write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return python


def pip(*arguments: str, python: Path | None = None) -> None:
    """Run pip without network, for `python` if given."""
    target = ["--python", str(python)] if python else []
    quiet = ["--quiet", "--no-input", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", *target, *arguments, *quiet]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def assert_works(python: Path, cwd: Path, where: str, **env: str) -> None:
    """Check that this installation finds its configuration in `where` and lists and composes its recipes."""
    found = run_module(
        "ssd_train", "+recipe=layerskip", "--info", "searchpath", cwd=cwd, python=str(python), **env
    )
    assert where in found.out, found.out + found.err
    listed = run_module("ssd_train", cwd=cwd, python=str(python), **env)
    assert listed.code == 2
    assert re.search(r"^  \+recipe=layerskip +LayerSkip: ", listed.err, re.MULTILINE), listed.err
    wrong = run_module(
        "ssd_train", "+recipe=plain", "eval.draft=x", "oops", cwd=cwd, python=str(python), **env
    )
    assert wrong.err.startswith("Configuration: 2 problems"), wrong.err
    right = run_module("ssd_train", "+recipe=plain", "print_config=true", cwd=cwd, python=str(python), **env)
    assert (right.code, "recipe_name: plain" in right.out) == (0, True), right.err


def test_uninstalled_checkout(tmp_path):
    assert config_directory() == str(CHECKOUT / "conf")
    assert_works(Path(sys.executable), tmp_path, f"file://{CHECKOUT / 'conf'}")


def test_wheel(tmp_path):
    source = copy_checkout(tmp_path / "source")
    pip("wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(tmp_path), str(source))
    wheel = next(tmp_path.glob("*.whl"))
    names = zipfile.ZipFile(wheel).namelist()
    assert {n.partition("/")[0] for n in names if ".dist-info" not in n} == {
        "ssd_conf",
        "ssd_infer",
        "ssd_train",
    }
    assert "ssd_infer/report/report.schema.json" in names
    templates = {f"ssd_infer/report/templates/{n}.html.j2" for n in ("page", "parts", "report", "comparison")}
    assert templates <= set(names)
    assert {f"ssd_infer/corpus/category_prompts/{name}.toml" for name in CATEGORIES} <= set(names)
    assert {"ssd_infer/py.typed", "ssd_train/py.typed"} <= set(names)
    assert [n for n in option_names("draft") if f"ssd_conf/draft/{n}.yaml" not in names] == []
    python = environment(tmp_path / "env")
    pip("install", "--no-deps", "--no-index", str(wheel), python=python)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert_works(python, elsewhere, "pkg://ssd_conf", PYTHONPATH="")
    for script, expected in (
        ("ssd-train", "Name a recipe"),
        ("ssd-eval", "checkpoint: must be set"),
        ("ssd-transcribe", "audio: must be set"),
    ):
        done = subprocess.run(
            [python.parent / script], cwd=elsewhere, capture_output=True, text=True, check=False
        )
        assert (done.returncode, expected in done.stderr) == (2, True), done.stderr
    assert list(elsewhere.iterdir()) == []


def test_editable_install_and_a_second_checkout(tmp_path):
    source = copy_checkout(tmp_path / "source")
    python = environment(tmp_path / "env")
    pip(
        "install", "--no-deps", "--no-build-isolation", "--no-index", "--editable", str(source), python=python
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert_works(python, elsewhere, f"file://{source / 'conf'}", PYTHONPATH="")
    assert_works(python, elsewhere, f"file://{CHECKOUT / 'conf'}", PYTHONPATH=str(CHECKOUT))

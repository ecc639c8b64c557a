"""Run the command lines as a user does, in a process of their own and from a directory that is not the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
import pytest
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra

from ssd_infer.config.compose import config_directory
from ssd_infer.config.evaluation import EvalSettings
from ssd_train.cli.register import register

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from omegaconf import DictConfig

CHECKOUT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Result:
    """What a command left behind."""

    code: int
    out: str
    err: str


def run_module(module: str, *arguments: str, cwd: Path, python: str = sys.executable, **env: str) -> Result:
    """Run `python -m module arguments` in `cwd` with the checkout importable, unless `env` says otherwise."""
    variables = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "HYDRA_FULL_ERROR", "RANK")}
    variables |= {"PYTHONPATH": str(CHECKOUT)} | env
    command = [python, "-m", module, *arguments]
    done = subprocess.run(
        command, cwd=cwd, env=variables, capture_output=True, text=True, timeout=120, check=False
    )
    return Result(done.returncode, done.stdout, done.stderr)


def option_names(group: str) -> list[str]:
    """Return the names of the YAML files of `group` that the toolkit ships."""
    return sorted(file.stem for file in (CHECKOUT / "conf" / group).glob("*.yaml"))


@pytest.fixture
def train(tmp_path: Path) -> Callable[..., Result]:
    """Return `python -m ssd_train` run in an empty directory."""
    return lambda *arguments, **env: run_module("ssd_train", *arguments, cwd=tmp_path, **env)


@pytest.fixture
def evaluate(tmp_path: Path) -> Callable[..., Result]:
    """Return `python -m ssd_infer` run in an empty directory."""
    return lambda *arguments, **env: run_module("ssd_infer", *arguments, cwd=tmp_path, **env)


@pytest.fixture
def compose() -> Iterator[Callable[..., DictConfig]]:
    """Return the composition of a command line in this process."""
    register()
    ConfigStore.instance().store(group="schema", name="evaluate", node=EvalSettings, package="_global_")

    def composed(*overrides: str, name: str = "train") -> Any:
        GlobalHydra.instance().clear()
        with hydra.initialize_config_dir(config_directory(), version_base="1.3"):
            return hydra.compose(name, overrides=list(overrides))

    yield composed
    GlobalHydra.instance().clear()

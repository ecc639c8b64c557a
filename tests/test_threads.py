"""Threads sleep while they wait, unless the user says otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from ssd_infer.threads import PASSIVE, wait_passively, waiting

OWN = ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY"]
_ENTRY = """
import importlib, os, sys
entry = importlib.import_module(sys.argv.pop(1))
entry.run = lambda cfg: print([os.environ.get(name) for name in NAMES], "torch" in sys.modules) or 0
NAMES = ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT"]
entry.main()
"""
_TORCH = "from ssd_infer.threads import wait_passively; assert wait_passively(); import torch; torch.ones(9)"


def _clean(**more: str) -> dict[str, str]:
    """Return the environment without a word about waiting."""
    return {name: value for name, value in os.environ.items() if name not in OWN} | more


def test_threads_sleep_by_default() -> None:
    environment = {"HOME": "/"}
    assert wait_passively(environment)
    assert environment == {"HOME": "/", **PASSIVE}


@pytest.mark.parametrize("name", OWN)
def test_the_users_word_about_waiting_wins(name: str) -> None:
    environment = {name: "anything"}
    assert not wait_passively(environment)
    assert environment == {name: "anything"}


def test_nothing_is_said_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenMP has read the variables when torch is loaded: setting them then would only look like an effect."""
    for name in OWN:
        monkeypatch.delenv(name, raising=False)
    assert "torch" in sys.modules
    assert not wait_passively()
    assert not set(OWN) & set(os.environ)
    assert waiting() == "default"


@pytest.mark.parametrize(
    ("entry", "argument"),
    [
        ("ssd_train.__main__", "+recipe=layerskip"),
        ("ssd_infer.__main__", "checkpoint=none"),
        ("ssd_infer.transcribe", "checkpoint=none"),
    ],
)
@pytest.mark.parametrize("said", [{}, {"OMP_WAIT_POLICY": "ACTIVE"}])
def test_every_command_asks_before_torch_is_loaded(entry: str, argument: str, said: dict[str, str]) -> None:
    command = [sys.executable, "-c", _ENTRY, entry, argument]
    done = subprocess.run(command, env=_clean(**said), capture_output=True, text=True, check=True)
    expected = ["ACTIVE", None] if said else [PASSIVE["OMP_WAIT_POLICY"], PASSIVE["GOMP_SPINCOUNT"]]
    assert done.stdout.splitlines()[-1] == f"{expected} False"


@pytest.mark.skipif(
    "ATen parallel backend: OpenMP" not in torch.__config__.parallel_info(), reason="no OpenMP"
)
def test_the_runtime_that_torch_loads_hears_it() -> None:
    environment = _clean(OMP_DISPLAY_ENV="VERBOSE")
    done = subprocess.run(
        [sys.executable, "-c", _TORCH], env=environment, capture_output=True, text=True, check=True
    )
    shown = {line.partition("=")[0].split()[-1]: line for line in done.stderr.splitlines() if "=" in line}
    name = next(name for name in ("GOMP_SPINCOUNT", "KMP_BLOCKTIME") if name in shown)
    assert f"'{PASSIVE[name]}'" in shown[name]

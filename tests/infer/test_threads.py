"""Threads sleep while they wait, unless the user says otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ssd_infer.threads import PASSIVE, wait_passively

_TORCH_FREE = "import sys; import ssd_infer.threads; assert 'torch' not in sys.modules"


def test_threads_sleep_by_default() -> None:
    environment = {"HOME": "/"}
    assert wait_passively(environment)
    assert environment == {"HOME": "/", **PASSIVE}


@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY"])
def test_the_users_word_about_waiting_wins(name: str) -> None:
    environment = {name: "anything"}
    assert not wait_passively(environment)
    assert environment == {name: "anything"}


def test_the_own_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "environ", environment := {})  # type: ignore[var-annotated]
    assert wait_passively()
    assert environment == PASSIVE


def test_asking_for_it_does_not_load_torch() -> None:
    subprocess.run([sys.executable, "-c", _TORCH_FREE], check=True)

"""How the threads of a process wait: asleep, so that one that has nothing to do takes no core from another.

OpenMP's threads spin between two products by default. Alone on its machine a spinning process is up to 15 % faster (24
layers on two cores), beside one busy thread it falls to a half; a measurement that is to repeat cannot hang on that.
This module imports nothing that starts threads: the variables are read when torch is.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping

PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}
"""For libgomp (torch's wheels) and the standard; for Intel's and LLVM's OpenMP (conda's builds)."""


def wait_passively(environment: MutableMapping[str, str] | None = None) -> bool:
    """Ask the OpenMP of this process, or of one started with `environment`, to wait asleep; what is set there stays.

    Return whether that has an effect: in this process only before torch is imported.
    """
    chosen = os.environ if environment is None else environment
    if environment is None and "torch" in sys.modules:
        return False
    for name, value in PASSIVE.items():
        chosen.setdefault(name, value)
    return True


def waiting() -> str:
    """Say how this process was asked to wait: `passive`, `active`, or `default`."""
    return os.environ.get("OMP_WAIT_POLICY", "default").lower()

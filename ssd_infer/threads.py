"""How the threads of a process wait: asleep, so that one that has nothing to do takes no core from another.

GNU's OpenMP, which torch's wheels bring, spins for three milliseconds at every barrier before it sleeps; where a core
has another process to run as well, each of thousands of small products waits for that long. Sleeping at once costs as
much on a machine of one's own, where waking takes longer than most products. A thousand turns, some ten microseconds,
are enough for threads that run side by side and too few to hold up anyone else. Seconds of a training step (24 layers,
two threads, two cores of a Zen 5) alone and beside one busy process: spinning 0.65 and 2.65, asleep at once 0.92 and
1.23, after a thousand turns 0.66 and 1.49.

This module imports nothing that starts threads: the variables are read when torch is loaded.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping

PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "0"}
"""The standard's word, a limit that GNU's OpenMP puts above it, and the word of LLVM's and Intel's (conda's builds)."""
_OWN = (*PASSIVE, "KMP_LIBRARY")


def wait_passively(environment: MutableMapping[str, str] | None = None) -> bool:
    """Ask the OpenMP of this process, or of one started with `environment`, to wait asleep; return whether it did.

    It does not where the user said anything about waiting, nor, in this process, once torch is imported: then nothing
    is changed. Children inherit what is set.
    """
    chosen = os.environ if environment is None else environment
    late = environment is None and "torch" in sys.modules
    if late or any(name in chosen for name in _OWN):
        return False
    chosen.update(PASSIVE)
    return True


def waiting() -> str:
    """Say how this process was asked to wait: `passive`, `active`, or `default`."""
    return os.environ.get("OMP_WAIT_POLICY", "default").lower()

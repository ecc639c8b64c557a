"""How threads wait for each other: asleep, so that a core shared with another process is not burnt in a barrier.

The OpenMP runtime that torch brings reads these variables once, when it is loaded: nothing here imports torch.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping

PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Understood by every OpenMP runtime: GNU's, which torch's wheels bring, and LLVM's and Intel's."""
_SETTINGS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")


def wait_passively(environment: MutableMapping[str, str] | None = None) -> bool:
    """Let the threads of torch sleep while they wait, here and in every child; return whether this set it.

    A process's own environment must be changed before torch is imported; `environment` may be that of a child instead.
    Whatever the user says about waiting wins.
    """
    where = os.environ if environment is None else environment
    if any(name in where for name in _SETTINGS):
        return False
    where.update(PASSIVE)
    return True

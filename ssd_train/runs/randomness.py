"""Keep the random number generators of a process as they are while something else runs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def untouched_randomness() -> Iterator[None]:
    """Give every generator (Python, NumPy, torch, CUDA) its state back on the way out, also after an exception.

    A validation or report may then be made at any step, or left out, without changing what is learned.
    """
    python, arrays = random.getstate(), np.random.get_state()  # noqa: NPY002 - transformers saves this very one
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)  # noqa: NPY002 - as above

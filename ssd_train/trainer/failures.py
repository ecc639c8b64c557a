"""Say in a sentence what ended a training loop from outside: another process, a data worker, a memory limit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from ssd_infer.errors import DataError, SSDError

_PEER = re.compile(
    r"connection (closed by peer|reset by peer|was likely closed|refused)|broken pipe|timed? ?out|socket|"
    r"remote (peer|process)|heartbeat|NCCL|gloo|store->get",
    re.IGNORECASE,
)
_WORKER = re.compile(r"DataLoader worker .*(exited unexpectedly|is killed by signal)")


@contextmanager
def explained(run_dir: Path, world_size: int) -> Iterator[None]:
    """Turn what torch raises for a lost process or a lost data worker into an SSDError with what to do."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise SSDError(
            f"the device is out of memory ({_first_line(error)}); lower train.batch_size and raise train.grad_accum, "
            "set train.activation_checkpointing=true, or choose an engine that shards: engine=fsdp2"
        ) from error
    except RuntimeError as error:
        text = str(error)
        if _WORKER.search(text):
            raise DataError(
                f"train.num_workers: a data-loading process died ({_first_line(error)}); out of memory is the usual "
                "cause: lower train.num_workers; the last checkpoint is intact, and the same command goes on from it"
            ) from error
        if world_size > 1 and (isinstance(error, torch.distributed.DistError) or _PEER.search(text)):
            raise SSDError(
                f"another process of this job ended or stopped answering ({_first_line(error)}); its own message is in "
                f"its log; the last checkpoint in {run_dir / 'checkpoints'} is intact, and the same command goes on "
                "from it"
            ) from error
        raise


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__

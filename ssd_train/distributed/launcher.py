"""What a launcher (accelerate, torchrun, deepspeed, srun) has prepared, and what is done where there is none."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ssd_infer.errors import ConfigError, Problem, SSDError

if TYPE_CHECKING:
    from transformers import TrainingArguments

T = TypeVar("T")
_ACCELERATE = {"ACCELERATE_USE_FSDP": "fsdp2", "ACCELERATE_USE_DEEPSPEED": "deepspeed_zero2"}
_DTYPES = {"bf16": "bfloat16", "fp16": "float16"}


PATIENCE = 30.0
"""Seconds in which a file that one process wrote must be seen by all."""


def rank() -> int:
    """Return the number of this process among all of the job, 0 without a launcher."""
    return int(os.environ.get("RANK", "0"))


def check_launcher(name: str, dtype: str) -> None:
    """Raise ConfigError when `accelerate launch` was told to shard or to compute in its own way.

    It would overrule `engine` and, where that is float32, `dtype`.
    """
    problems = []
    for flag, remedy in _ACCELERATE.items():
        if os.environ.get(flag, "false").lower() not in ("", "0", "false"):
            rule = f"is chosen here, and the launcher sets {flag} besides"
            advice = f"launch without it and say engine={remedy} if that is meant"
            problems.append(Problem("engine", rule, name, advice))
    precision = os.environ.get("ACCELERATE_MIXED_PRECISION", "no").lower()
    if dtype == "float32" and precision != "no":
        meant = _DTYPES.get(precision, "bfloat16")
        rule = f"is chosen here, and the launcher sets ACCELERATE_MIXED_PRECISION={precision} besides"
        advice = f"launch with --mixed_precision no, or say dtype={meant} if that is meant"
        problems.append(Problem("dtype", rule, dtype, advice))
    if problems:
        raise ConfigError(problems)


def join_alone() -> None:
    """Make a group of one out of a process that no launcher started."""
    if "RANK" in os.environ:
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    os.environ.update(alone, MASTER_PORT=str(port))


def first_for_all(args: TrainingArguments, action: Callable[[], T]) -> T:
    """Return what `action` returns on the first process; where it raises on purpose, all processes raise."""
    import torch

    outcome: list[Any] = [None, None]
    error: SSDError | OSError | None = None
    if args.process_index == 0:
        try:
            outcome[0] = action()
        except (SSDError, OSError) as caught:
            error, outcome[1] = caught, str(caught)
    if args.world_size > 1:
        torch.distributed.broadcast_object_list(outcome, device=args.device)
    if error is not None:
        raise error
    if outcome[1] is not None:
        raise SSDError(f"the first process of the job could not start: {outcome[1]}")
    return outcome[0]  # type: ignore[no-any-return]


def require_shared(args: TrainingArguments, file: Path) -> None:
    """Raise SSDError on all processes unless all of them see `file`, which the first one has just written.

    A run directory on a node's own disk would take the files of that node's processes only, and a checkpoint of it
    could not be continued. Network file systems may show a new file late, so there is some patience.
    """
    import torch

    if args.world_size == 1:
        return
    deadline = time.monotonic() + PATIENCE
    while not file.exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    blind = torch.tensor(0 if file.exists() else 1, device=args.device)
    torch.distributed.all_reduce(blind)
    if blind.item():
        raise SSDError(
            f"output_root: {int(blind.item())} of {args.world_size} processes do not see {file}, which the first one "
            "wrote; set output_root to a directory that all nodes share"
        )


@contextmanager
def whole_weights(args: TrainingArguments) -> Iterator[None]:
    """Build a model with all its weights in every process, also under ZeRO-3, which shards them afterwards.

    A recipe looks at the model before training, and weights drawn from a seed are the same under every engine.
    """
    config = getattr(args, "hf_deepspeed_config", None)
    if config is None:
        yield
        return
    from transformers.integrations.deepspeed import set_hf_deepspeed_config, unset_hf_deepspeed_config

    unset_hf_deepspeed_config()
    try:
        yield
    finally:
        set_hf_deepspeed_config(config)

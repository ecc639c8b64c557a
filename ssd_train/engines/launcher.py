"""What a launcher (accelerate, torchrun, deepspeed, srun) has prepared, and what is done where there is none."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from ssd_infer.errors import ConfigError, Problem, SSDError

if TYPE_CHECKING:
    from transformers import TrainingArguments

T = TypeVar("T")
_ACCELERATE = {"ACCELERATE_USE_FSDP": "fsdp2", "ACCELERATE_USE_DEEPSPEED": "deepspeed_zero2"}


def rank() -> int:
    """Return the number of this process among all of the job, 0 without a launcher."""
    return int(os.environ.get("RANK", "0"))


def check_launcher(name: str) -> None:
    """Raise ConfigError when `accelerate launch` was told to shard in its own way, which would overrule `engine`."""
    for flag, remedy in _ACCELERATE.items():
        if os.environ.get(flag, "false").lower() not in ("", "0", "false"):
            rule = f"is chosen here, and the launcher sets {flag} besides"
            advice = f"launch without it and say engine={remedy} if that is meant"
            raise ConfigError([Problem("engine", rule, name, advice)])


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

"""Start a training in several processes of one job, and let a fault happen in one of them."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssd_train.config.schema import Root
from tests.train.support import in_processes

CLOCK = "seconds_per_step"


@dataclass(frozen=True)
class Fault:
    """A signal that process `rank` sends itself at the end of the forward of `step`, or in its validation."""

    signal: signal.Signals
    step: int
    rank: int = 0
    where: str = "step"


def free_port() -> int:
    """Return a port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def train_ranks(cfg: Root, world: int = 2, fault: Fault | None = None) -> list[int]:
    """Train as `cfg` says in `world` processes and return their exit codes; `errors-RANK.txt` says how each failed."""
    Path(cfg.output_root).mkdir(parents=True, exist_ok=True)
    port = free_port()
    return in_processes(one_rank, *((cfg, rank, world, port, fault) for rank in range(world)))


def one_rank(cfg: Root, rank: int, world: int, port: int, fault: Fault | None) -> None:
    """Train as one of `world` processes; run in a process of its own."""
    if world > 1:
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in place.items()}, MASTER_ADDR="127.0.0.1")
    from ssd_infer.errors import SSDError
    from ssd_train import run

    if fault is not None and fault.rank == rank:
        arm(fault)
    errors = error_file(cfg, rank)
    with errors.open("w", encoding="utf-8") as stream, redirect_stderr(stream):
        try:
            run.train(cfg)
        except SSDError as error:
            stream.write(f"{type(error).__name__}: {error}\n")
            raise SystemExit(2) from None


def arm(fault: Fault) -> None:
    """Let this process send itself the signal of `fault`."""
    from ssd_train.trainer.trainer import SSDTrainer

    name = "compute_loss" if fault.where == "step" else "evaluate"
    whole = getattr(SSDTrainer, name)

    def fatal(self: SSDTrainer, *args: Any, **kwargs: Any) -> Any:
        out = whole(self, *args, **kwargs)
        if self.state.global_step == fault.step:
            os.kill(os.getpid(), fault.signal)
        return out

    setattr(SSDTrainer, name, fatal)


def error_file(cfg: Root, rank: int) -> Path:
    """Return where process `rank` writes what went wrong."""
    return Path(cfg.output_root) / f"errors-{rank}.txt"


def curve(run_dir: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's metrics without the times in them."""
    lines = [
        json.loads(line) for line in (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    return [{name: value for name, value in line.items() if name != CLOCK} for line in lines]


def assert_close(left: Sequence[dict[str, Any]], right: Sequence[dict[str, Any]], rel: float) -> None:
    """Assert that two curves have the same steps and names, and values within `rel` of each other."""
    assert [line["step"] for line in left] == [line["step"] for line in right]
    for ours, theirs in zip(left, right, strict=True):
        assert set(ours) == set(theirs)
        for name, value in ours.items():
            assert abs(value - theirs[name]) <= rel * max(abs(theirs[name]), 1e-2), (ours["step"], name)

"""Evaluate in a process of its own, in which nothing else lives: no trainer, no tracker, no loader, no live line.

The parent hands the settings over as JSON and passes on what the child says; the report comes back as its files.

    python -m ssd_infer.evaluation.alone '{…}'      (one JSON object a line comes out)
"""

from __future__ import annotations

import dataclasses
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TextIO

from ssd_infer import errors
from ssd_infer.config.evaluation import EvalSettings
from ssd_infer.errors import SSDError
from ssd_infer.evaluation import evaluate, report_folder
from ssd_infer.jsonio import from_json, to_json
from ssd_infer.report.write import read_report
from ssd_infer.threads import wait_passively

logger = logging.getLogger(__name__)

Say = Callable[[str], None]
_LAUNCHERS = ("ACCELERATE_", "FSDP_", "TORCHELASTIC_", "DEEPSPEED_")
_RANKS = (
    "RANK",
    "LOCAL_RANK",
    "GROUP_RANK",
    "ROLE_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)
INTERRUPTED = 130


def evaluate_alone(settings: EvalSettings, say: Say | None = None) -> dict[str, Any]:
    """Evaluate `settings.checkpoint` in a fresh process, and return the report it wrote.

    `say` receives one line a phase (None: the log does). Raises SSDError as `evaluate` would, and where the process
    ended by itself; whatever is raised here meanwhile ends the process.
    """
    request = to_json({"settings": dataclasses.asdict(settings), "argv": sys.argv})
    command = [sys.executable, "-m", "ssd_infer.evaluation.alone", request]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment_alone(os.environ))  # noqa: S603
    assert child.stdout is not None
    with child:
        try:
            problem = _listen(child.stdout, say or logger.info)
        except BaseException:
            child.terminate()
            raise
    if problem is not None:
        raise problem
    if child.returncode:
        raise SSDError(
            f"the process that measures ended with code {child.returncode}; what it said stands above"
        )
    return read_report(report_folder(settings))


def environment_alone(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process that measures: no rank of a launcher, threads that wait asleep."""
    kept = {
        name: value
        for name, value in environment.items()
        if name not in _RANKS and not name.startswith(_LAUNCHERS)
    }
    here = str(Path(errors.__file__).resolve().parents[1])
    kept["PYTHONPATH"] = os.pathsep.join([here, *filter(None, [environment.get("PYTHONPATH")])])
    wait_passively(kept)
    return kept


def _listen(lines: Iterable[str], say: Say) -> SSDError | None:
    """Pass on what the child says until it has no more to say; return the error it met, if any."""
    problem = None
    for line in lines:
        message = from_json(line)
        if "say" in message:
            say(message["say"])
        else:
            problem = rebuilt(message["error"], message["text"])
    return problem


def rebuilt(kind: str, text: str) -> SSDError:
    """Return an error of this toolkit from its class's name and its words."""
    found = getattr(errors, kind, SSDError)
    plain = isinstance(found, type) and issubclass(found, SSDError) and found is not errors.ConfigError
    return found(text) if plain else SSDError(text)


def main(request: str, answers: TextIO) -> int:
    """Evaluate as the JSON `request` says, for the command line it names, and return the exit code.

    What there is to say goes to `answers`, one JSON object a line.
    """

    def answer(**message: str) -> None:
        answers.write(to_json(message) + "\n")
        answers.flush()

    given = from_json(request)
    sys.argv = given["argv"]  # the report names the command that asked for it
    try:
        evaluate(EvalSettings(**given["settings"]), lambda line: answer(say=line))
    except SSDError as error:
        answer(error=type(error).__name__, text=str(error))
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)  # what a library prints must not stand between the answers
        sys.exit(main(sys.argv[1], out))

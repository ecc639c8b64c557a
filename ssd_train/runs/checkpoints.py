"""Checkpoints that survive a kill at any moment: written aside, verified by hash, renamed, pruned, ranked.

Layout: `checkpoints/step-N/` is complete or absent. `ssd_manifest.json` inside lists size and SHA-256 of every file;
`best.json` beside `checkpoints/` names the checkpoint that was measured to decode fastest, or before any report shows
a gain the one with the longest simulated acceptance.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

from ssd_infer.atomic import write_text
from ssd_infer.checkpoint.manifest import MANIFEST, RECORD, damage, read_record, sha256
from ssd_infer.checkpoint.steps import (
    TRAINER_STATE,
    checkpoint_folders,
    misnamed,
    misnamed_folders,
    recorded_step,
    step_number,
    trained_step,
)
from ssd_infer.errors import CheckpointError
from ssd_infer.jsonio import from_json, to_json
from ssd_infer.report.rows import find_row, gains
from ssd_infer.report.schema import ReportError
from ssd_infer.report.write import read_report

logger = logging.getLogger(__name__)

_PARTIAL = ".partial-"
_RETIRED = ".retired-"
_DAMAGED = "damaged-"
_FOREIGN = "foreign-"
_RESERVE = 16 << 20
LOSS_GATE = 1.03
"""The best checkpoint's validation loss may be this much above the lowest one."""


class CheckpointStore:
    """The checkpoints of one run."""

    def __init__(self, run_dir: Path, keep_last: int) -> None:
        """Look at `run_dir/checkpoints`; `keep_last` 0 keeps all."""
        self.run_dir = run_dir
        self.directory = run_dir / "checkpoints"
        self.keep_last = keep_last

    def path(self, step: int) -> Path:
        """Return where the checkpoint of `step` is."""
        return self.directory / f"step-{step}"

    def steps(self) -> list[int]:
        """Return the steps that have a checkpoint directory, ascending; renamed copies are none."""
        return [step_number(path) for path in checkpoint_folders(self.directory)]

    def clean(self) -> None:
        """Remove what an interrupted save left behind."""
        for prefix in (_PARTIAL, _RETIRED):
            for left in self.directory.glob(f"{prefix}*"):
                _remove(left)

    def latest(self) -> Path | None:
        """Return the newest intact checkpoint, None if there are none; say which others were passed over, and why.

        Raises CheckpointError when there are checkpoints but every one is damaged or renamed.
        """
        renamed, damaged = self._renamed(), list[str]()
        for step in reversed(self.steps()):
            problem = damage(self.path(step)) or self._disagreement(step)
            if problem is None:
                for line in damaged:
                    logger.warning("%s; continuing from step %d instead", line, step)
                return self.path(step)
            damaged.append(f"{self.path(step)}: {problem}")
        if damaged or renamed:
            listed = "\n".join([*damaged, *renamed])
            raise CheckpointError(f"no checkpoint of this run is intact:\n{listed}\nresume=never starts anew")
        return None

    def _renamed(self) -> list[str]:
        """Say which directories are passed over for their names; of these, return those that hold a checkpoint."""
        renamed = []
        for path, reason in misnamed_folders(self.directory).items():
            logger.warning("%s: %s; it is passed over", path, reason)
            if recorded_step(path) is not None:
                renamed.append(f"{path}: {reason}")
        return renamed

    def _disagreement(self, step: int) -> str | None:
        """Return in what the trainer's state differs from the name of the checkpoint, None if in nothing."""
        found = trained_step(self.path(step))
        return None if found in (None, step) else f"its {TRAINER_STATE} is of step {found}"

    def set_aside_after(self, step: int) -> None:
        """Rename the checkpoints beyond `step`, which `latest` found damaged, so that nothing counts on them again.

        They would be the newest ones of `prune`, the last one of an evaluation, and might be the best.
        """
        for later in (found for found in self.steps() if found > step):
            aside = self.directory / f"{_DAMAGED}step-{later}"
            shutil.rmtree(aside, ignore_errors=True)
            self.path(later).rename(aside)
            logger.warning("the damaged checkpoint of step %d is now in %s", later, aside)

    def save(self, step: int, write: Callable[[Path], None], *, main: bool, wait: Callable[[], None]) -> Path:
        """Let every rank `write` into a directory aside, then make it `step-N` in one rename; return the new path.

        Raises CheckpointError, with nothing changed, when the disk is full or a file cannot be written.
        """
        aside = self.directory / f"{_PARTIAL}step-{step}"
        if main:
            shutil.rmtree(aside, ignore_errors=True)
        wait()
        try:
            aside.mkdir(parents=True, exist_ok=True)
            write(aside)
            wait()
            if main:
                seal(aside)
                self._publish(aside, self.path(step))
        except Exception as error:  # safetensors, torch and json each have their own type for a full disk
            full = _is_full(error, self.directory)
            shutil.rmtree(aside, ignore_errors=True)
            raise CheckpointError(self._explain(step, error, full)) from error
        wait()
        return self.path(step)

    def rehearse(self, write: Callable[[Path], None]) -> None:
        """Go through a save with what `write` makes of nothing, and leave no trace of it.

        What only a save would run into (a full or read-only disk, names that are taken, a configuration that cannot be
        written) ends the run before its first step: raises CheckpointError.
        """
        aside, away = (self.directory / f"{prefix}trial" for prefix in (_PARTIAL, _RETIRED))
        try:
            self._check_names()
            for left in (aside, away):
                _remove(left)
            aside.mkdir(parents=True)
            write(aside)
            seal(aside)
            aside.rename(away)
            _sync_directory(self.directory)
        except Exception as error:  # as in `save`
            reason = "no space left on the disk" if _is_full(error, self.run_dir) else _described(error)
            raise CheckpointError(
                f"a checkpoint of this run could not be saved in {self.directory}: {reason}; nothing was trained; "
                "remove the cause and repeat the command"
            ) from error
        finally:
            for left in (aside, away):
                shutil.rmtree(left, ignore_errors=True)

    def _check_names(self) -> None:
        """Raise OSError where something else has the name of a file or folder that a run writes."""
        for name in ("best.json", "metrics.jsonl"):
            if (self.run_dir / name).is_dir():
                raise IsADirectoryError(
                    f"{self.run_dir / name} is a directory, and the run writes a file there"
                )
        metrics = self.run_dir / "metrics.jsonl"
        if metrics.exists():
            metrics.open("ab").close()
        for name in ("checkpoints", "reports"):
            if (self.run_dir / name).exists() and not (self.run_dir / name).is_dir():
                raise NotADirectoryError(
                    f"{self.run_dir / name} is a file, and the run writes into a folder there"
                )

    def annotate(self, step: int, values: dict[str, Any]) -> None:
        """Add `values` to the record of a checkpoint, mark the best one anew, and prune."""
        path = self.path(step) / RECORD
        record = {**from_json(path.read_text(encoding="utf-8")), **values}
        write_text(path, to_json(record, indent=2, sort_keys=True) + "\n")
        self.mark_best()
        self.prune()

    def mark_best(self) -> Path | None:
        """Write `best.json`: of the checkpoints within 3 % of the lowest loss, the one measured to decode fastest.

        Where no report shows a gain it is the one with the longest simulated acceptance. Without that gate a model that
        knows nothing would win: it predicts the same token from every depth.
        """
        rows = list(self._measured())
        if not rows:
            return None
        limit = LOSS_GATE * min(loss for _, loss, _ in rows)
        gated = [(tau, -loss, step) for tau, loss, step in rows if loss <= limit]
        tau, negative_loss, step = max(gated)
        best: dict[str, Any] = {"metric": "tau_sim", "value": tau}
        faster = [(gain, *row) for row in gated if (gain := measured_gain(self.run_dir, row[2])) is not None]
        if faster:
            gain, tau, negative_loss, step = max(faster, key=lambda found: (found[0]["speedup"], found[1:]))
            best = {"metric": "speedup", "value": gain["speedup"], **gain, "tau_sim": tau}
        best = {
            "step": step,
            "path": str(self.path(step).relative_to(self.run_dir)),
            **best,
            "validation_loss": -negative_loss,
        }
        write_text(self.run_dir / "best.json", to_json(best, indent=2) + "\n")
        return self.path(step)

    def best(self) -> Path | None:
        """Return the checkpoint `best.json` names, None if there is none."""
        facts = self.best_facts()
        path = self.run_dir / facts["path"] if facts else None
        return path if path is not None and path.is_dir() else None

    def best_facts(self) -> dict[str, Any]:
        """Return what `best.json` says, nothing if there is none."""
        file = self.run_dir / "best.json"
        return dict(from_json(file.read_text(encoding="utf-8"))) if file.exists() else {}

    def prune(self) -> None:
        """Remove all but the newest `keep_last` checkpoints and the best."""
        best = self.best()
        for step in self.steps()[: -self.keep_last] if self.keep_last > 0 else []:
            if self.path(step) != best:
                retired = self.directory / f"{_RETIRED}step-{step}"
                self.path(step).rename(retired)
                shutil.rmtree(retired, ignore_errors=True)

    def _measured(self) -> Iterator[tuple[float, float, int]]:
        """Yield (simulated acceptance length, validation loss, step) where the validation gave numbers."""
        for step in self.steps():
            record = read_record(self.path(step))
            tau, loss = record.get("tau_sim"), record.get("validation_loss")
            if tau is not None and loss is not None and math.isfinite(tau) and math.isfinite(loss):
                yield tau, loss, step

    def _publish(self, aside: Path, final: Path) -> None:
        if final.exists():
            final.rename(self._place_for(final))
        aside.rename(final)
        _sync_directory(self.directory)
        self.clean()

    def _place_for(self, former: Path) -> Path:
        """Return where what stands at a new checkpoint's place goes: a damaged one away, what is of others aside."""
        if former.is_dir() and misnamed(former) is None:
            return self.directory / f"{_RETIRED}{former.name}"
        aside = _free(self.directory / f"{_FOREIGN}{former.name}")
        logger.warning("%s is none of this run's checkpoints and is now %s", former, aside.name)
        return aside

    def _explain(self, step: int, error: Exception, full: bool) -> str:
        earlier = self.steps()
        intact = (
            f"the last one, {self.path(earlier[-1])}, is untouched" if earlier else "there is no earlier one"
        )
        reason = "no space left on the disk" if full else _described(error)
        remedy = "free some space" if full else "remove the cause"
        return f"checkpoint of step {step} in {self.directory}: {reason}; {intact}; {remedy} and repeat the command"


def measured_gain(run_dir: Path, step: int) -> dict[str, Any] | None:
    """Return the speedup that the report of `step` claims, and of which strategy; None without a gain or a report.

    A strategy counts if it really drafted and its interval lies above 1, whatever version wrote the report.
    """
    try:
        report = read_report(run_dir / "reports" / f"step-{step}")
    except ReportError:  # none yet, or one that cannot be trusted
        return None
    row = find_row(report, report["verdict"]["best_strategy"])
    if row is None or not gains(row):
        return None
    speed = row["speed"]
    return {"speedup": speed["speedup"], "ci95": speed["ci95"], "strategy": row["name"]}


def seal(directory: Path) -> None:
    """Write the manifest of `directory` and force every file in it to the disk."""
    files = sorted(
        path for path in directory.rglob("*") if path.is_file() and path.name not in (MANIFEST, RECORD)
    )
    entries = {
        str(path.relative_to(directory)): {"bytes": path.stat().st_size, "sha256": sha256(path)}
        for path in files
    }
    (directory / MANIFEST).write_text(to_json({"files": entries}, indent=1) + "\n", encoding="utf-8")
    for path in directory.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    _sync_directory(directory)


def require_space(directory: Path, needed: int) -> None:
    """Raise OSError(ENOSPC) before anything is written when `needed` bytes will not fit."""
    if shutil.disk_usage(directory).free < needed + _RESERVE:
        raise OSError(errno.ENOSPC, f"a checkpoint needs about {needed >> 20} MiB")


def _remove(path: Path) -> None:
    """Remove a directory as far as that goes, or a file that stood in a checkpoint's place."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _free(path: Path) -> Path:
    """Return `path`, with a number behind its name where that is taken."""
    numbered = (path.with_name(f"{path.name}-{number}") for number in count(2))
    return path if not path.exists() else next(other for other in numbered if not other.exists())


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _is_full(error: BaseException | None, directory: Path) -> bool:
    if error is None:
        return False
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error):
        return True
    return shutil.disk_usage(directory).free < _RESERVE or _is_full(error.__cause__, directory)


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

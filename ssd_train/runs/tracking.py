"""Follow a run from outside: W&B, TensorBoard, MLflow, Trackio, or nothing. A failing service never stops training."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import json
import logging
import netrc
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlparse
from uuid import uuid4

from ssd_infer.atomic import write_text
from ssd_infer.errors import ConfigError, Problem
from ssd_infer.jsonio import from_json, to_json
from ssd_infer.report.flat import report_scalars
from ssd_infer.report.wandb import TRACKING, log_wandb_report
from ssd_train.config.schema import Root

logger = logging.getLogger(__name__)

ID_FILE = TRACKING
FINISH_SECONDS = 120.0
"""How long the end of a run waits for a service that does not answer; what is not sent stays on disk."""


class Tracker:
    """A run's tracking on this rank; `report_to` goes to `TrainingArguments`. The base follows nothing."""

    report_to: list[str] = []  # noqa: RUF012 -- never changed in place

    def log_report(self, report_dir: Path, step: int | None = None) -> None:
        """Send the checkpoint report in `report_dir`, if it exists, to the service."""

    def finish(self, exit_code: int = 0) -> None:
        """Close the run; calling it again does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish(1 if error else 0)


def start(cfg: Root, run_dir: Path) -> Tracker:
    """Open the tracking `cfg` asks for, on rank 0 only; call it before the Trainer is built, which finds the run open.

    Raises `ConfigError` for a tracker that is unknown or not installed.
    """
    if cfg.tracking.name not in _STARTERS:
        names = ", ".join(_STARTERS)
        raise ConfigError(
            [Problem("tracking", f"must be one of {names}", cfg.tracking.name, "try tracking=none")]
        )
    if int(os.environ.get("RANK", "0")) != 0:
        return Tracker()
    return _STARTERS[cfg.tracking.name](cfg, Path(run_dir))


def run_id(cfg: Root, run_dir: Path) -> str:
    """Return the id of this run, the same after every restart: stored in `run_dir`, derived from the configuration.

    `resume=never` gets a new one, because its steps start at zero again.
    """
    path = run_dir / ID_FILE
    if cfg.resume != "never" and path.exists():
        stored: str = from_json(path.read_text(encoding="utf-8"))["id"]
        return stored
    seed = uuid4().hex if cfg.resume == "never" else f"{run_dir.resolve()}/{cfg.seed}"
    name = "".join(char if char.isalnum() else "-" for char in f"{cfg.recipe_name}-{cfg.run_name}")
    new = f"{name[:48]}-{hashlib.sha256(seed.encode()).hexdigest()[:8]}"
    path.parent.mkdir(parents=True, exist_ok=True)
    facts = {"id": new, "project": cfg.tracking.project, "entity": cfg.tracking.entity, "name": cfg.run_name}
    write_text(path, to_json({**facts, "group": cfg.recipe_name}))
    return new


def has_credentials() -> bool:
    """Tell whether W&B could log in: an API key or identity token in the environment, or an entry in `.netrc`."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlparse(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    for path in (os.environ.get("NETRC"), "~/.netrc", "~/_netrc"):
        try:
            if path and netrc.netrc(Path(path).expanduser()).authenticators(host):
                return True
        except (OSError, netrc.NetrcParseError):
            continue
    return False


class WandbTracker(Tracker):
    """A W&B run, online or offline."""

    report_to: list[str] = ["wandb"]  # noqa: RUF012

    def __init__(self, run: Any, run_dir: Path) -> None:
        self.run, self.run_dir = run, run_dir
        self.offline = bool(run.offline)
        self._open = True
        where = "offline; it is sent later with the command printed at the end" if self.offline else run.url
        logger.info("tracking: W&B run %s, %s", run.id, where)

    @property
    def sync_command(self) -> str:
        """Return the command that uploads every part of this offline run."""
        return f"wandb sync {self.run_dir / 'wandb'}/offline-run-*-{self.run.id}"

    def log_report(self, report_dir: Path, step: int | None = None) -> None:
        """Send a report as one Table and, with all its files, as one Artifact."""
        _attempt("send the report to W&B", lambda: log_wandb_report(self.run, Path(report_dir), step))

    def finish(self, exit_code: int = 0) -> None:
        """Close the run and, when it is offline, print how to send it."""
        if not self._open:
            return
        self._open = False
        _attempt("finish the W&B run", lambda: self.run.finish(exit_code=exit_code))
        if self.offline:
            print(f"W&B ran offline. Send the run with: {self.sync_command}", flush=True)


class TensorboardTracker(Tracker):
    """Event files in `run_dir/tensorboard`, written by the Trainer's own callback."""

    report_to: list[str] = ["tensorboard"]  # noqa: RUF012

    def __init__(self, run_dir: Path) -> None:
        self.directory = run_dir / "tensorboard"
        os.environ["TENSORBOARD_LOGGING_DIR"] = str(self.directory)

    def log_report(self, report_dir: Path, step: int | None = None) -> None:
        """Write the report's text and figures beside the training curves."""
        _attempt("write the report for TensorBoard", lambda: self._log_report(Path(report_dir), step))

    def _log_report(self, report_dir: Path, step: int | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        report = json.loads((report_dir / "report.json").read_text(encoding="utf-8"))
        with SummaryWriter(str(self.directory)) as writer:
            text = (report_dir / "report.md").read_text(encoding="utf-8")
            writer.add_text("report", text, step)
            for name, value in report_scalars(report).items():
                writer.add_scalar(name, value, step)


def _start_wandb(cfg: Root, run_dir: Path) -> Tracker:
    if importlib.util.find_spec("wandb") is None:
        logger.warning("tracking: wandb is not installed, so the run is not tracked; pip install wandb")
        return Tracker()
    mode = cfg.tracking.mode
    if mode == "auto":
        mode = os.environ.get("WANDB_MODE") or ("online" if has_credentials() else "offline")
    if mode in ("disabled", "none"):
        return Tracker()
    for attempt in dict.fromkeys((mode, "offline")):
        run = _attempt(f"start W&B {attempt}", partial(_init_wandb, cfg, run_dir, attempt))
        if run is not None:
            _remember(run_dir, attempt)
            return WandbTracker(run, run_dir)
    return Tracker()


def _remember(run_dir: Path, mode: str) -> None:
    """Note how the run is tracked, for the jobs that add reports to it."""
    path = run_dir / ID_FILE
    facts = from_json(path.read_text(encoding="utf-8")) if path.exists() else {}
    write_text(path, to_json({**facts, "mode": mode}))


def _init_wandb(cfg: Root, run_dir: Path, mode: str) -> Any:
    import wandb

    run_dir.mkdir(parents=True, exist_ok=True)
    patience: dict[str, Any] = (
        {"finish_timeout": FINISH_SECONDS} if "finish_timeout" in wandb.Settings.model_fields else {}
    )
    return wandb.init(
        project=cfg.tracking.project,
        entity=cfg.tracking.entity,
        id=run_id(cfg, run_dir),
        name=cfg.run_name,
        group=cfg.recipe_name,
        resume="allow" if mode in ("online", "shared") else None,
        mode=mode,  # type: ignore[arg-type]
        dir=str(run_dir),
        config=dataclasses.asdict(cfg),
        settings=wandb.Settings(console="off", silent=True, init_timeout=60, **patience),
    )


def _start_tensorboard(_cfg: Root, run_dir: Path) -> Tracker:
    if not any(importlib.util.find_spec(name) for name in ("tensorboard", "tensorboardX")):
        problem = Problem(
            "tracking", "needs the package tensorboard", "tensorboard", "pip install tensorboard"
        )
        raise ConfigError([problem])
    return TensorboardTracker(run_dir)


class LibraryTracker(Tracker):
    """A service whose run transformers' own callback opens, follows and closes."""

    def __init__(self, name: str) -> None:
        self.report_to = [name]


def _start_mlflow(cfg: Root, run_dir: Path) -> Tracker:
    _need("mlflow")
    import mlflow

    store = f"sqlite:///{(run_dir / 'mlflow.db').resolve()}"
    uri = os.environ.setdefault("MLFLOW_TRACKING_URI", store)
    os.environ["MLFLOW_EXPERIMENT_NAME"] = cfg.tracking.project
    known = run_dir / "mlflow.json"
    run_dir.mkdir(parents=True, exist_ok=True)
    mlflow.set_tracking_uri(uri)
    experiment = mlflow.set_experiment(cfg.tracking.project)
    if cfg.resume == "never" or not known.exists():
        run = mlflow.MlflowClient().create_run(experiment.experiment_id, run_name=cfg.run_name)
        write_text(known, to_json({"id": run.info.run_id}))
    os.environ["MLFLOW_RUN_ID"] = from_json(known.read_text(encoding="utf-8"))["id"]
    return LibraryTracker("mlflow")


def _start_trackio(_cfg: Root, run_dir: Path) -> Tracker:
    _need("trackio")
    os.environ.setdefault("TRACKIO_DIR", str((run_dir / "trackio").resolve()))
    return LibraryTracker("trackio")


def _need(name: str) -> None:
    if importlib.util.find_spec(name) is None:
        raise ConfigError([Problem("tracking", f"needs the package {name}", name, f"pip install {name}")])


def _start_nothing(_cfg: Root, _run_dir: Path) -> Tracker:
    return Tracker()


def _attempt(what: str, action: Callable[[], Any]) -> Any:
    """Return what `action` returns; say why and return None when the tracking service fails."""
    try:
        return action()
    except Exception as error:  # noqa: BLE001 -- tracking is never worth a training run, whatever the service raises
        logger.warning("tracking: could not %s: %s: %s", what, type(error).__name__, error)
        return None


_STARTERS: dict[str, Callable[[Root, Path], Tracker]] = {
    "wandb": _start_wandb,
    "tensorboard": _start_tensorboard,
    "mlflow": _start_mlflow,
    "trackio": _start_trackio,
    "none": _start_nothing,
}

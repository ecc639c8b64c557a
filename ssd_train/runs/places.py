"""Refuse a run directory that would swallow what the run reads, or lie in what is not its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from ssd_infer.errors import ConfigError, Problem
from ssd_infer.jsonio import from_json
from ssd_train.config.schema import Root

_MODELS = ("name", "tokenizer", "decoder_name")
_DATA = ("path", "validation_path", "name")
_OWN = ("checkpoints", "reports", "tokenizer")
"""Folders of a run directory whose contents the run itself replaces and removes."""
_ANOTHER = "choose another run_name or output_root"


def check_places(cfg: Root) -> None:
    """Raise ConfigError where the run directory and what the run reads lie in each other."""
    run_dir = cfg.run_dir.absolute().resolve()
    problems = list(_read_from_the_run(cfg, run_dir))
    home = _model_around(run_dir)
    if home is not None and not problems:
        rule = f"puts the run directory into the folder of a model, {home}"
        problems.append(Problem("output_root", rule, str(cfg.run_dir), _ANOTHER))
    if problems:
        raise ConfigError(problems)


def _read_from_the_run(cfg: Root, run_dir: Path) -> Iterator[Problem]:
    """Yield every input that lies where this run moves or removes files."""
    for key, value in _inputs(cfg):
        place = Path(value).expanduser().absolute().resolve()
        if not os.path.exists(place):  # noqa: PTH110 - pathlib's raises for what may not be looked at
            continue  # a name of the hub, or a pattern
        if place.is_relative_to(run_dir):
            rule = _inside(place.relative_to(run_dir), cfg.resume)
            if rule is not None:
                yield Problem(key, rule, value, f"{_ANOTHER}, or copy it elsewhere")
        elif key in ("data.path", "data.validation_path") and run_dir.is_relative_to(place):
            rule = "holds the run directory, so the run's own files would become its data"
            yield Problem(key, rule, value, _ANOTHER)


def _inside(part: Path, resume: str) -> str | None:
    """Return why `part` of the run directory cannot be read from, None if it can."""
    if resume == "never":
        return "lies inside the run directory, which resume=never moves away before anything is read"
    if not part.parts:
        return "is the run directory itself"
    own = part.parts[0] in _OWN
    return "lies among the files of this run, which it replaces and removes as it goes" if own else None


def _inputs(cfg: Root) -> Iterator[tuple[str, str]]:
    """Yield the dotted key and the value of everything the run may read from a disk."""
    for node, names in (("model", _MODELS), ("data", _DATA)):
        settings: Any = getattr(cfg, node)
        for found in fields(settings):
            value = getattr(settings, found.name)
            if found.name in names and isinstance(value, str) and value:
                yield f"{node}.{found.name}", value


def _model_around(run_dir: Path) -> Path | None:
    """Return the folder of a model that the run directory is, or lies in; what a run itself writes is no model."""
    folders = (run_dir, *run_dir.parents)
    return next((folder for folder in folders if _holds_model(folder)), None)


def _holds_model(folder: Path) -> bool:
    """Tell whether `folder` is one that `save_pretrained` wrote, or a download of the hub."""
    try:
        config = from_json((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and ("model_type" in config or "architectures" in config)

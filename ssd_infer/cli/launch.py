"""Start a task under `hydra.main`, with our own words for every mistake and an exit code that means something.

Exit codes: 0 done, 1 a check of the task failed, 2 the user must change something, 130 interrupted.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from ssd_infer.cli.console import error_console, print_error
from ssd_infer.cli.lazy_help import admit_lazy_help
from ssd_infer.config.as_typed import as_typed, is_swept, open_keys, opened, text_keys
from ssd_infer.config.compose import config_directory, group_names
from ssd_infer.config.explain import HYDRA_ERRORS, explain_all
from ssd_infer.errors import ConfigError, Problem, SSDError
from ssd_infer.threads import wait_passively

Task = Callable[[DictConfig], int]
USER_ERROR = 2
INTERRUPTED = 130
_FULL = "HYDRA_FULL_ERROR"


def launch(
    config_name: str,
    task: Task,
    check: Callable[[DictConfig], object],
    lists: Collection[str] = (),
    folders: Sequence[str] = (),
) -> int:
    """Compose `config_name` from the command line, run `task` on it, and return the exit code.

    `check` converts and validates a composition; it is asked again when the command line holds several mistakes.
    `lists` are the keys whose single value may be given without brackets, `folders` further places of YAML files.
    HYDRA_FULL_ERROR=1 shows tracebacks.
    """
    wait_passively()  # before a task imports torch
    admit_lazy_help()
    sys.argv[1:] = typed_arguments(config_name, with_folders(bracket(sys.argv[1:], lists), folders))
    codes: list[int] = []
    started: list[bool] = []

    def guarded(cfg: DictConfig) -> None:
        started.append(True)
        codes.append(_guard(task, cfg))

    main = hydra.main(config_path=config_directory(), config_name=config_name, version_base="1.3")(guarded)
    wants_traceback = os.environ.get(_FULL) == "1"
    try:
        with _hydra_raises():
            main()
    except (*HYDRA_ERRORS, HydraException, ValueError) as error:
        if wants_traceback or started:
            raise
        print_error(_explain(config_name, error, check))
        return USER_ERROR
    return max(codes, default=0)


def bracket(arguments: list[str], lists: Collection[str]) -> list[str]:
    """Return `arguments` with `key=a,b` written `key=[a,b]` for the keys in `lists`, unless they are swept."""
    if is_swept(arguments):
        return arguments

    def fix(argument: str) -> str:
        key, sign, value = argument.partition("=")
        single = sign and key.lstrip("+") in lists and value not in ("", "null") and value[0] not in "[$"
        return f"{key}=[{value}]" if single else argument

    return [fix(argument) for argument in arguments]


def typed_arguments(config_name: str, arguments: list[str]) -> list[str]:
    """Return `arguments` with every value of a key of type text such that it arrives as typed, open keys opened.

    The schema is the one registered as `schema/config_name`.
    """
    stored: Any = ConfigStore.instance().repo["schema"][f"{config_name}.yaml"]
    schema = OmegaConf.get_type(stored.node)
    assert schema is not None, "a registered schema is a dataclass"
    keys = text_keys(schema, group_names())
    return opened(as_typed(arguments, keys, swept=is_swept(arguments)), open_keys(schema))


def _guard(task: Task, cfg: DictConfig) -> int:
    """Run `task`; an error made on purpose becomes one screen and an exit code."""
    try:
        return task(cfg)
    except SSDError as error:
        print_error(error)
        return USER_ERROR
    except KeyboardInterrupt:
        error_console().print("Interrupted.")
        return INTERRUPTED


@contextmanager
def _hydra_raises() -> Iterator[None]:
    """Make Hydra raise its errors instead of printing them and exiting."""
    before = os.environ.get(_FULL)
    os.environ[_FULL] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_FULL]
        else:
            os.environ[_FULL] = before


def _explain(config_name: str, error: Exception, check: Callable[[DictConfig], object]) -> SSDError:
    """Return one error for everything that is wrong with the command line."""
    arguments = get_args_parser().parse_args()
    if isinstance(error, HYDRA_ERRORS):
        return explain_all(
            error,
            arguments.overrides,
            lambda overrides: check(composed(config_name, overrides, arguments.config_dir)),
        )
    if isinstance(error, ValueError):
        rule = "must name an option of each group of settings"
        given = " ".join(item for item in arguments.overrides if item.endswith("=null"))
        return ConfigError([Problem("command line", rule, given, str(error))])
    return SSDError(str(error))


def composed(config_name: str, overrides: list[str], extra: str | None = None) -> DictConfig:
    """Compose as `hydra.main` does, with `extra` as a further directory of configurations."""
    GlobalHydra.instance().clear()
    where = config_directory()
    source = (
        hydra.initialize_config_module(where.removeprefix("pkg://"), version_base="1.3")
        if where.startswith("pkg://")
        else hydra.initialize_config_dir(where, version_base="1.3")
    )
    with source:
        return hydra.compose(config_name, overrides=_with_directory(overrides, extra))


def _with_directory(overrides: list[str], extra: str | None) -> list[str]:
    """Return `overrides` with the directory `extra` first in `hydra.searchpath`."""
    return overrides if extra is None else with_folders(overrides, [f"file://{Path(extra).resolve()}"])


def with_folders(overrides: list[str], folders: Sequence[str]) -> list[str]:
    """Return `overrides` with `folders` first in `hydra.searchpath`, before those given there."""
    if not folders:
        return overrides
    given = [item for item in overrides if item.startswith("hydra.searchpath=")]
    rest = [item for item in overrides if item not in given]
    inner = re.sub(r"^hydra\.searchpath=\[?(.*?)\]?$", r",\1", given[-1]) if given else ""
    return [*rest, f"hydra.searchpath=[{','.join(folders)}{inner}]"]

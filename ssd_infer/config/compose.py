"""From a Hydra composition to a typed object: where the YAML lives, and a conversion that lets nothing stray by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar, cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ssd_infer.config.checks import Checks, suggest

T = TypeVar("T")
_PACKAGE = "ssd_conf"


def config_directory() -> str:
    """Return where Hydra finds the YAML tree: this checkout's `conf/` if there is one, else `pkg://ssd_conf`.

    The checkout comes first: an editable install of another checkout must not lend its files to this code.
    """
    root = Path(__file__).resolve().parents[2]
    if (root / "pyproject.toml").is_file() and (root / "conf" / "__init__.py").is_file():
        return str(root / "conf")
    return f"pkg://{_PACKAGE}"


def group_names() -> frozenset[str]:
    """Return the groups of settings the toolkit ships options for, whose keys choose a file."""
    where = config_directory()
    root = resources.files(_PACKAGE) if where.startswith("pkg://") else Path(where)
    return frozenset(item.name for item in root.iterdir() if item.is_dir())


def to_settings(cfg: DictConfig, schema: type[T], validate: Callable[[T, Checks], None]) -> T:
    """Convert the composed `cfg` to `schema` and apply `validate`.

    Raises `ConfigError` with all problems together: keys the dataclasses lack (Hydra lets `+key=value` add them),
    values nobody set, references that lead nowhere, and every broken rule. Rules wait until all values are there.
    """
    checks = Checks()
    settings = _build(cfg, checks)
    if not isinstance(settings, schema):
        raise TypeError(f"the composition is a {type(settings).__name__}, not a {schema.__name__}")
    if all(problem.rule == _UNKNOWN for problem in checks.problems):
        validate(settings, checks)
    checks.finish()
    return settings


_UNKNOWN = "is not a known key"


def _build(node: DictConfig, checks: Checks) -> object:
    """Build the dataclass that types `node`, its children first; note what is missing or unknown."""
    kind = cast("type[Any]", OmegaConf.get_type(node))
    names = [f.name for f in fields(kind)]
    for key in node:
        if key not in names:
            checks.fail(str(key), _UNKNOWN, _plain(node, key), suggest(str(key), names))
    return kind(**{name: _value(node, name, checks) for name in names})


def _value(node: DictConfig, name: str, checks: Checks) -> object:
    """Return the plain or dataclass value of `node.name`; a value not to be had is noted and becomes None."""
    if OmegaConf.is_missing(node, name):
        checks.fail(name, "must be set", "???", f"add {checks.prefix}{name}=...")
        return None
    try:
        child = node[name]
        if isinstance(child, DictConfig) and is_dataclass(OmegaConf.get_type(child)):
            return _build(child, checks.under(name))
        return OmegaConf.to_container(child, resolve=True) if OmegaConf.is_config(child) else child
    except OmegaConfBaseException as error:
        checks.fail(name, "cannot be resolved", _plain(node, name), str(error).splitlines()[0])
        return None


def _plain(node: DictConfig, key: Any) -> object:
    """Return what the user wrote at `key`, references unresolved."""
    return OmegaConf.to_container(node, resolve=False)[key]  # type: ignore[index]

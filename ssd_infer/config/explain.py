"""Turn Hydra's and OmegaConf's complaints into ours, and find the remaining ones of the same command line.

Hydra stops at the first wrong override. `explain_all` takes that override out, composes again, and so on, until
what is left composes and the rules can be applied to it: the user sees every mistake at once.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence

import yaml
from hydra.core.config_store import ConfigStore
from hydra.errors import ConfigCompositionException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException

from ssd_infer.config.as_typed import quoted
from ssd_infer.config.checks import suggest
from ssd_infer.errors import ConfigError, Problem

HYDRA_ERRORS = (
    ConfigCompositionException,
    MissingConfigException,
    OverrideParseException,
    OmegaConfBaseException,
    yaml.YAMLError,
)
"""What composing can raise for a mistake of the user's."""


def explain_all(error: Exception, overrides: list[str], check: Callable[[list[str]], object]) -> ConfigError:
    """Return all problems of `overrides`, of which composing reported `error` first.

    `check(overrides)` composes and validates; it raises one of `HYDRA_ERRORS`, or `ConfigError`.
    """
    problems: list[Problem] = []
    while True:
        problem = explain(error, overrides)
        problems.append(problem)
        rest = [item for item in overrides if not _is_about(item, problem, error)]
        if len(rest) == len(overrides) or problem.key == "recipe":
            return ConfigError(problems)
        overrides = rest
        try:
            check(overrides)
        except ConfigError as more:
            return ConfigError([*problems, *more.problems])
        except HYDRA_ERRORS as another:
            error = another
        else:
            return ConfigError(problems)


def explain(error: Exception, overrides: Sequence[str] = ()) -> Problem:
    """Return the problem behind one error of Hydra or OmegaConf; an unfamiliar one keeps its own words."""
    if isinstance(error, MissingConfigException):
        return _missing_option(error)
    if isinstance(error, OverrideParseException):
        return _unreadable(str(error.override), error)
    if isinstance(error, yaml.YAMLError):
        return _syntax(error)
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
    if isinstance(cause, OmegaConfBaseException):
        return _typed(cause, overrides)
    return _inside_file(str(error)) or _composition(str(error))


def _unreadable(override: str, error: Exception) -> Problem:
    """Explain an argument Hydra's grammar has no sense for, with the quotes that let it pass."""
    key, sign, value = override.partition("=")
    if not sign or re.fullmatch(r"[~+]*[\w./@]+", key) is None:
        return Problem("command line", "every argument must read key=value", override, _first(error))
    rule = "has characters with a meaning of their own, which quotes take from them"
    typed = shlex.quote(f"{key}={quoted(value)}")
    return Problem(key.lstrip("+~"), rule, value, f"if that is its text, write {typed}")


def _first(error: Exception) -> str:
    return str(error).splitlines()[-2 if "\nSee " in str(error) else 0]


def _syntax(error: yaml.YAMLError) -> Problem:
    """Explain a file that is no YAML: where it breaks, and how."""
    mark = getattr(error, "problem_mark", None)
    where = f"{mark.name}, line {mark.line + 1}" if mark else str(getattr(error, "name", "configuration"))
    said = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    return Problem(where, "must be YAML", said, "check indentation, colons, quotes and brackets there")


def _missing_option(error: MissingConfigException) -> Problem:
    group, _, name = str(error.missing_cfg_file).rpartition("/")
    options = [option for option in error.options or () if not option.startswith("schema")]
    return Problem(group or "command line", "there is no such option", name, suggest(name, options))


def _typed(cause: OmegaConfBaseException, overrides: Sequence[str]) -> Problem:
    """Explain an override that does not fit the schema: an unknown key or a value of another type."""
    key = cause.full_key or str(cause.key)
    given = next((item.partition("=")[2] for item in overrides if _key(item) == key), None)
    if isinstance(cause, ConfigKeyError | AttributeError):
        names = getattr(getattr(cause, "object_type", None), "__dataclass_fields__", {})
        return Problem(key, "is not a known key", given, suggest(key.rpartition(".")[2], names))
    return Problem(key, _type_rule(str(cause)), given)


def _type_rule(message: str) -> str:
    """Say which type was wanted, from OmegaConf's first line."""
    line = message.splitlines()[0]
    if "ListConfig" in line:
        return "must be a list, written [a,b]"
    if wanted := re.search(r"could not be converted to (\w+)", line):
        return f"must be {_TYPES.get(wanted[1], wanted[1])}"
    if wanted := re.search(r"is not a subclass of (\w+)", line):
        return f"is a group of settings ({wanted[1]}), not a single value"
    return "cannot be removed" if "support deletion" in line else f"is not allowed: {line}"


_TYPES = {"Integer": "a whole number", "Float": "a number", "Bool": "true or false"}


def _inside_file(message: str) -> Problem | None:
    """Explain an error that stands in a YAML file, for which Hydra keeps only the text."""
    place = re.match(r"In '([^']+)': (\w+) raised while composing config:\n(.*)", message, re.DOTALL)
    key = re.search(r"full_key: (\S+)", message)
    if not place or not key:
        return None
    where, body = f"in {place[1]}.yaml", place[3]
    if re.match(r"Key '.*' not in", body):
        name = key[1].rpartition(".")[2]
        return Problem(key[1], f"is not a known key, {where}", name, _known_beside(body, name))
    value = re.match(r"Value '(.*?)' of type", body)
    return Problem(key[1], f"{_type_rule(body)}, {where}", value[1] if value else "another type")


def _known_beside(body: str, name: str) -> str:
    """Suggest a spelling from the schema that OmegaConf names in `body`."""
    schema = re.search(r"object_type=(\w+)", body)
    known = next((c for c in _all_schemas() if schema and c.__name__ == schema[1]), None)
    return suggest(name, getattr(known, "__dataclass_fields__", {}))


def _all_schemas() -> list[type]:
    """Return the dataclasses registered with Hydra and those nested in them."""

    def nodes(tree: object) -> list[DictConfig]:
        if isinstance(tree, dict):
            return [node for child in tree.values() for node in nodes(child)]
        node = getattr(tree, "node", tree)
        if not isinstance(node, DictConfig):
            return []
        inner = [k for k in node if not OmegaConf.is_missing(node, k) and OmegaConf.is_dict(node[k])]
        return [node, *(n for k in inner for n in nodes(node[k]))]

    return [
        kind
        for node in nodes(ConfigStore.instance().repo)
        if isinstance(kind := OmegaConf.get_type(node), type)
    ]


def _composition(message: str) -> Problem:
    """Explain what Hydra says about an override as a whole: a missing or a superfluous plus, or a sweep."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    if group := re.match(r"Could not override '([^']+)'\. No match in the defaults list", lines[0]):
        use = re.search(r"use (\S+)$", message)
        value = use[1].partition("=")[2] if use else ""
        return Problem(
            group[1], "has no default to replace", value, f"write {use[1]}" if use else "add a plus"
        )
    if key := re.match(r"Could not append to config\. An item is already at '([^']+)'", lines[0]):
        return Problem(key[1], "exists already, so nothing can be added", f"+{key[1]}", "leave the plus out")
    if group := re.match(r"Multiple values for (\w+)\.", lines[0]):
        return Problem(group[1], "is chosen already", f"+{group[1]}", "leave the plus out")
    if sweep := re.match(r"Ambiguous value for argument '([^=]+)=(.*)'", lines[0]):
        remedy = f"write {sweep[1]}=[{sweep[2]}] for a list, or --multirun for one run each"
        return Problem(sweep[1], "must be one value", sweep[2], remedy)
    return Problem("configuration", "cannot be composed", lines[0], " ".join(lines[1:]))


def _key(override: str) -> str:
    """Return the dotted key of an override, or its group, without package and sign."""
    return override.lstrip("+~").partition("=")[0].partition("@")[0]


def _is_about(override: str, problem: Problem, error: Exception) -> bool:
    """Tell whether `override` itself is what `problem` complains about, and not a file it chose."""
    if isinstance(error, OverrideParseException):
        return override == error.override
    in_file = str(error).startswith("In '") and not isinstance(error, MissingConfigException)
    return not in_file and problem.key == _key(override)

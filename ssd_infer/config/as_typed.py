"""Let every setting that is text arrive as it was typed on the command line.

Hydra reads each value by its own grammar before it knows what the key wants: `1_1` is the number 11 there, `1e3` is
1000.0, `true` a truth value, and `a=b`, `~/x` or a letter that is not ASCII no value at all. So whatever is typed for
a key of type text is put in quotes here, unless Hydra reads it as that very text anyway.

What keeps its meaning: quotes the user wrote, `null` where a key may be empty, `${…}`, and the commas of a sweep.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

_SWEEPS = re.compile(r"(choice|shuffle|sort|range|glob|interval|tag)\(.*\)$", re.DOTALL)
_OPEN, _CLOSE = "([{", ")]}"


@dataclass(frozen=True, slots=True)
class Text:
    """A setting that is text."""

    optional: bool
    """Whether `null` means that there is none."""
    many: bool
    """Whether it is a list of texts."""


def text_keys(schema: type, groups: frozenset[str] = frozenset()) -> dict[str, Text]:
    """Return the dotted keys of all settings of `schema` that are text, those of every kind of a node together.

    A key that names one of the config `groups` is none: its value chooses a file.
    """
    leaves = [(key, _text(wanted)) for key, wanted in _walk(schema)]
    others = {key for key, kind in leaves if kind is None}
    return {key: kind for key, kind in leaves if kind is not None and key not in groups | others}


def as_typed(arguments: list[str], keys: dict[str, Text], *, swept: bool = False) -> list[str]:
    """Return `arguments` with the values of the text `keys` quoted where Hydra would read something else.

    With `swept` a comma outside quotes and brackets separates the values of a sweep.
    """
    return [_fixed(argument, keys, swept) for argument in arguments]


def open_keys(schema: type) -> frozenset[str]:
    """Return the dotted keys of settings of `schema` that hold names of their own choice, such as `draft_params`."""
    return frozenset(key for key, wanted in _walk(schema) if get_origin(wanted) is dict)


def opened(arguments: list[str], keys: frozenset[str]) -> list[str]:
    """Return `arguments` such that names below the open `keys` may be set whether or not a file has set them before.

    Whether they are known there is for whoever reads them to say: Hydra only knows what its files hold.
    """

    def fix(argument: str) -> str:
        inside = any(argument.startswith(f"{key}.") for key in keys)
        return f"++{argument}" if inside and "=" in argument else argument

    return [fix(argument) for argument in arguments]


def is_swept(arguments: list[str]) -> bool:
    """Tell whether a command line asks for several jobs."""
    return bool({"-m", "--multirun", "hydra.mode=MULTIRUN"} & set(arguments))


def quoted(text: str) -> str:
    """Return `text` in quotes, as Hydra reads it back letter by letter."""
    inside = re.sub(r"(\\*)'", r"\1\1\\'", text)
    return "'" + re.sub(r"(\\+)$", r"\1\1", inside) + "'"


def _walk(schema: type, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted key and the type of every leaf of `schema` and its subclasses."""
    for kind in _variants(schema):
        hints = get_type_hints(kind)
        for entry in fields(kind):
            wanted = hints[entry.name]
            key = f"{prefix}{entry.name}"
            if is_dataclass(wanted):
                yield from _walk(wanted, f"{key}.")  # type: ignore[arg-type]
            else:
                yield key, wanted


def _variants(schema: type[Any]) -> list[type[Any]]:
    below: list[type[Any]] = schema.__subclasses__()
    return [schema, *(kind for inner in below for kind in _variants(inner))]


def _text(wanted: Any) -> Text | None:
    """Return what a type says about text, None if it is none."""
    parts = get_args(wanted) if get_origin(wanted) in (Union, types.UnionType) else (wanted,)
    optional = type(None) in parts
    rest = [part for part in parts if part is not type(None)]
    if rest == [str]:
        return Text(optional, many=False)
    return Text(optional, many=True) if rest == [list[str]] else None


def _fixed(argument: str, keys: dict[str, Text], swept: bool) -> str:
    key, sign, value = argument.partition("=")
    name = key.lstrip("+")
    kind = keys.get(name)
    inside = keys.get(re.sub(r"\.\d+$", "", name))
    if kind is None and inside is not None and inside.many:  # one place of a list
        kind = Text(optional=False, many=False)
    if not sign or kind is None or key.startswith(("~", "-")):
        return argument
    return f"{key}={_sweep(value, kind) if swept else _value(value, kind)}"


def _sweep(value: str, kind: Text) -> str:
    """Return the values of a sweep, each as typed."""
    choice = re.fullmatch(r"(choice\()(.*)(\))", value, re.DOTALL)
    if choice:
        return f"choice({_each(choice[2], lambda part: _value(part, kind))})"
    return value if _SWEEPS.match(value) else _each(value, lambda part: _value(part, kind))


def _value(value: str, kind: Text) -> str:
    if kind.optional and value == "null":
        return value
    if not kind.many:
        return _one(value)
    if not (value.startswith("[") and value.endswith("]")) or not value[1:-1].strip():
        return value
    return f"[{_each(value[1:-1], lambda part: _one(part.strip()))}]"


def _each(values: str, change: Callable[[str], str]) -> str:
    return ",".join(change(part) for part in _parts(values))


def _one(value: str) -> str:
    """Return `value`, in quotes unless Hydra reads it as it stands, or it stands in quotes already."""
    read = _read(value)
    plain = read == value and "\\" not in value  # which would take its meaning from the comma behind it
    if isinstance(read, str) and (plain or value[:1] in ("'", '"')):
        return value
    return quoted(value)


def _read(value: str) -> Any:
    """Return what Hydra makes of `value`, None for what is no single value to it."""
    try:
        override = OverridesParser.create().parse_override(f"key={value}")
    except HydraException:
        return None
    return None if override.is_sweep_override() else override.value()


def _parts(values: str) -> list[str]:
    """Split at the commas that stand outside quotes and brackets."""
    parts, depth, quote, start = [], 0, "", 0
    for place, letter in enumerate(values):
        if quote:
            quote = "" if letter == quote and not _escaped(values[start:place]) else quote
        elif letter in "'\"" and not values[start:place].strip(" [("):
            quote = letter
        elif letter == "," and depth == 0:
            parts.append(values[start:place])
            start = place + 1
        else:
            depth = max(0, depth + (letter in _OPEN) - (letter in _CLOSE))
    return [*parts, values[start:]]


def _escaped(before: str) -> bool:
    """Tell whether an odd number of backslashes ends `before`."""
    return (len(before) - len(before.rstrip("\\"))) % 2 == 1

"""Format numbers and untrusted text for people; the same input always gives the same characters."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

MISSING = "–"
TOO_SHORT = "too short to tell"


def number(value: float | None, digits: int = 2) -> str:
    """Format with a fixed count of decimals; a dash for None and for what is not finite."""
    if value is None or not math.isfinite(value):
        return MISSING
    return f"{value:.{digits}f}"


def times(value: float | None) -> str:
    """Format a speedup such as `1.62×`."""
    text = number(value)
    return text if text == MISSING else f"{text}×"


def interval(bounds: list[float] | None) -> str:
    """Format a confidence interval such as `1.51–1.72`."""
    return MISSING if not bounds else f"{number(bounds[0])}–{number(bounds[1])}"


def row_interval(row: Mapping[str, Any]) -> str:
    """Format the interval of a strategy or peer row, and say where it was measured too briefly for ±10 %."""
    extra = row.get("extra") or {}
    text = interval(row["speed"]["ci95"] if "speed" in row else extra.get("ci95"))
    if not extra.get("too_short_to_tell"):
        return text
    return TOO_SHORT if text == MISSING else f"{text}, {TOO_SHORT}"


def percent(value: float | None, digits: int = 0) -> str:
    """Format a share in [0, 1] such as `45 %`."""
    return MISSING if value is None or not math.isfinite(value) else f"{100 * value:.{digits}f} %"


def bytes_text(value: int | None) -> str:
    """Format a byte count with a binary unit."""
    if value is None:
        return MISSING
    size, units = float(value), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:.0f} {units[0]}" if units[0] == "B" else f"{size:.1f} {units[0]}"


def params_text(params: Mapping[str, Any] | None) -> str:
    """Format parameters as `E=2, γ=3`; long lists become their length, a confidence of 0 (off) is left out."""
    params = {key: value for key, value in (params or {}).items() if (key, value) != ("confidence", 0)}
    if not params:
        return MISSING
    short = {"exit_layer": "E", "gamma": "γ"}
    return ", ".join(f"{short.get(key, key)}={_value(value)}" for key, value in params.items())


def row_params(row: Mapping[str, Any], most: int | None = None) -> str:
    """Say with which parameters a strategy row was decoded, or that it chose plain decoding; at most `most` of them."""
    if row["extra"].get("fell_back_to_plain"):
        return "plain decoding"
    params = [item for item in row["params"].items() if item != ("confidence", 0)]
    return params_text(dict(params[:most])) + (", …" if most is not None and len(params) > most else "")


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list) and (len(value) > 8 or any(isinstance(item, list) for item in value)):
        return f"[{len(value)} items]"
    return str(value)


PLAIN_DECODINGS = {
    "ssd_plain": "plain decoding",
    "transformers_generate": "transformers' plain decoding",
    "ar_greedy": "plain decoding",
}
"""Baseline → what people call it."""
SETTINGS = ((re.compile(r"t(\d+(?:\.\d+)?)"), "T = "), (re.compile(r"b(\d+)"), "batch "))
"""Parts of a row name that say how it was decoded, and what people read instead."""


def readable(name: str) -> str:
    """Return a row name as people read it: `a_b:xgram:t1` is `a b + x-gram, T = 1`; any name will do."""
    first, *parts = name.split(":")
    text = PLAIN_DECODINGS.get(first) or " + ".join(map(_words, first.split("+")))
    for part in parts:
        setting = next((word + found[1] for form, word in SETTINGS if (found := form.fullmatch(part))), None)
        if setting is not None:
            text += f", {setting}"
        else:
            words = " + ".join(map(_words, part.split("+")))
            text += f" + {words}" if words.endswith("-gram") else f", {words}"
    return text


def _words(text: str) -> str:
    """Return `text` with blanks for underscores; a word without a vowel is an abbreviation."""
    return " ".join(map(_word, text.split("_")))


def _word(text: str) -> str:
    if re.fullmatch(r"[a-z]gram", text):
        return f"{text[0]}-gram"
    return text.upper() if text == "wer" or re.fullmatch(r"[b-df-hj-np-tv-xz]{2,4}", text) else text


def said(line: str, names: Iterable[str]) -> str:
    """Return a sentence with those of `names` that stand free in it as people read them; what may be typed stays."""
    known = sorted({name for name in names if readable(name) != name}, key=lambda name: (-len(name), name))
    if not known:
        return line
    form = r"(?<![\w:=+./'\"`\[])(?:" + "|".join(map(re.escape, known)) + r")(?![\w+=/'\"`]|:\w|\.\w)"
    return re.sub(form, lambda found: readable(found[0]), line)


TASK_SETS = {"categories": "", "spec_bench": "Spec-Bench ", "speed_bench": "SPEED-Bench "}
"""What stands before the slash of a task that is one category of many, and what people read instead."""


def task_text(name: str) -> str:
    """Return the name of a task as people read it: of a file its own name, of a category the words without the set."""
    kind, _, path = name.partition(":")
    if kind == "file":
        return path.replace("\\", "/").rpartition("/")[2]
    kind, slash, category = name.partition("/")
    if slash and kind in TASK_SETS:
        return TASK_SETS[kind] + category.replace("_", " ")
    return name.replace("_", " ")


def milliseconds(value: float | None) -> str:
    """Format milliseconds with three digits or whole numbers."""
    if value is None or not math.isfinite(value):
        return MISSING
    return number(value, 0 if value >= 100 else 1 if value >= 10 else 2)


def cell_text(value: str | float | None) -> str:
    """Format a cell of a table that a report carries: three decimals at most, a dash for None."""
    if isinstance(value, str):
        return value
    text = number(value, 3)
    return text.rstrip("0").rstrip(".") if "." in text else text


def plain(text: object) -> str:
    """Flatten to one printable line: control characters and line breaks become blanks."""
    return "".join(char if char.isprintable() else " " for char in str(text)).strip()


def markdown(text: object) -> str:
    """Escape untrusted text for a Markdown cell: nothing in it may start markup, a link or HTML."""
    flat = plain(text)
    flat = re.sub(r"[\\`*\[\]|~#!$]|(?<![^\W_])_|_(?![^\W_])", lambda match: "\\" + match.group(), flat)
    return flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")

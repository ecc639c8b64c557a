"""Format numbers and untrusted text for people; the same input always gives the same characters."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
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

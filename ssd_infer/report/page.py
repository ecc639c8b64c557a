"""Fill the page templates: no script, no network, and every string is escaped."""

from __future__ import annotations

import base64
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from ssd_infer.report.format import cell_text, plain


def render_page(template: str, title: str, **context: Any) -> str:
    """Render `template` with the package's style sheet; equal contexts give equal bytes."""
    return _environment().get_template(template).render(title=title, style=_style(), **context) + "\n"


@cache
def _style() -> Markup:
    text = resources.files("ssd_infer.report").joinpath("style.css").read_text("utf-8")
    return Markup(text.rstrip())  # noqa: S704  the package's own


@cache
def _environment() -> Environment:
    found = Environment(
        loader=PackageLoader("ssd_infer.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_flat,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {"cell": cell_text, "lines": _lines, "base64": _base64}
    return found


def _flat(value: Any) -> Any:
    """Flatten what is about to be escaped to one printable line; markup of our own stays."""
    return value if isinstance(value, Markup) else plain(value)


def _lines(text: str) -> Markup:
    """Escape text that keeps its line breaks and tabs; what cannot be seen is a dot."""
    seen = (char if char.isprintable() or char in "\n\t" else "·" for char in text)
    return escape("".join(seen))


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()

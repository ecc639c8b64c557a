"""Turn standard-library sources into text worth reading: docstrings apart from code, tables cut short."""

from __future__ import annotations

import re

_LEXEME = re.compile(
    r"#[^\n]*"
    r"|(?P<triple>\"\"\"(?:[^\\]|\\.)*?\"\"\"|'''(?:[^\\]|\\.)*?''')"
    r"|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'",
    re.DOTALL,
)
_TABLE_LINE = re.compile(r"^\s*(?:[\"'(\[{]|[-+]?\d|0x|b'|b\"|u'|r')[^#]*[,\])}]\s*(?:#.*)?$")
_UNDERLINE = re.compile(r"^\s*([-=*~^#_+.])\1{3,}\s*$")
_MAX_LINE = 320
_TABLE_KEPT = 4
_MIN_DOCSTRING = 300


def split_docstrings(source: str) -> tuple[str, list[str]]:
    """Return `source` without its long docstrings, and those docstrings dedented, so no passage occurs twice."""
    docstrings: list[str] = []
    code: list[str] = []
    position = 0
    for match in _LEXEME.finditer(source):
        literal = match.group("triple")
        if literal is None or len(literal) < _MIN_DOCSTRING or not _stands_alone(source, match.start()):
            continue
        line_start = source.rfind("\n", 0, match.start()) + 1
        code.append(source[position:line_start])
        position = min(len(source), match.end() + 1)
        docstrings.append(_dedent(literal[3:-3]))
    code.append(source[position:])
    return "".join(code), docstrings


def _stands_alone(source: str, start: int) -> bool:
    """Tell whether the literal at `start` opens a statement, as a docstring does."""
    line_start = source.rfind("\n", 0, start) + 1
    if source[line_start:start].strip().lower() not in {"", "r", "u"}:
        return False
    before = source[:line_start].rstrip()
    return not before or before[-1] == ":" or before.rsplit("\n", 1)[-1].startswith("#")


def _dedent(docstring: str) -> str:
    lines = docstring.expandtabs(4).split("\n")
    margins = [len(line) - len(line.lstrip()) for line in lines[1:] if line.strip()]
    margin = min(margins, default=0)
    return "\n".join([lines[0].strip(), *(line[margin:].rstrip() for line in lines[1:])]).strip()


def clean_code(source: str) -> str:
    """Shorten literal tables, drop over-long and underline lines, and squeeze blank lines of `source`."""
    kept: list[str] = []
    run = blank = 0
    for line in map(str.rstrip, source.expandtabs(4).split("\n")):
        if len(line) > _MAX_LINE or _UNDERLINE.match(line):
            continue
        run = run + 1 if _TABLE_LINE.match(line) else 0
        blank = 0 if line else blank + 1
        if run <= _TABLE_KEPT and blank <= 2:
            kept.append(line)
    return "\n".join(kept).strip() + "\n"


def clean_prose(text: str) -> str:
    """Drop heading underlines and over-long lines of `text`, and leave single blank lines between paragraphs."""
    lines = (line.rstrip() for line in text.expandtabs(4).split("\n"))
    kept = [line for line in lines if len(line) <= _MAX_LINE and not _UNDERLINE.match(line)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip() + "\n"


def paragraphs(text: str) -> list[str]:
    """Split `text` at blank lines."""
    return [part for part in re.split(r"\n\s*\n", text) if part.strip()]

"""The one reader of text files: prose, JSON lines, question–answer pairs, manifests, transcripts, prompts.

A file is UTF-8, with or without a byte order mark, or UTF-16 (or UTF-32) with one; `.gz` is unpacked. Anything else is
refused by file, line and byte: guessing an encoding would put wrong letters into the text without a word.
"""

from __future__ import annotations

import codecs
import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from ssd_infer.errors import DataError

_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_CHUNK = 1 << 20


def read_lines(path: Path, key: str) -> Iterator[tuple[int, str]]:
    r"""Yield `(number, line)` from 1, lines ending in `\n` alone; raises DataError, which names `key`."""
    number, open_line = 1, list[str]()
    for text in _decoded(path, key):
        first, *others = text.split("\n")
        open_line.append(first)
        for part in others:
            yield number, "".join(open_line) + "\n"
            number, open_line = number + 1, [part]
    if last := "".join(open_line):
        yield number, last


def read_whole(path: Path, key: str) -> str:
    """Return the whole text of a file; raises DataError, which names `key`."""
    return "".join(_decoded(path, key))


def read_objects(path: Path, key: str) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Yield `(where, line number, object)` of JSON lines, empty lines left out; raises DataError naming the line."""
    for number, line in read_lines(path, key):
        if line.strip():
            where = f"{path}:{number}"
            yield where, number, _object(line, f"{key}: {where}")


def check_text(text: str, where: str) -> None:
    r"""Raise DataError, which begins with `where`, for half of a surrogate pair, which JSON can spell: `\ud800`."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where} holds half of a surrogate pair ({error.object[error.start]!r}), which is not text; "
            "write the file again with ensure_ascii=False"
        ) from error


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        place = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else error
        raise DataError(
            f"{where} is not JSON: {place} (got {line.strip()[:60]!r}); put one JSON object on each line"
        ) from error
    if not isinstance(row, dict):
        raise DataError(
            f"{where} must be a JSON object (got {type(row).__name__}); "
            'put one object such as {"text": "…"} on each line'
        )
    return row


def _decoded(path: Path, key: str) -> Iterator[str]:
    """Yield the text of a file in pieces."""
    try:
        with _opened(path) as file:
            mark, encoding = _encoding(file.read(4))
            file.seek(mark)
            yield from _pieces(file, path, key, mark, encoding)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(
            f"{key}: {path} cannot be read ({reason}); check the file and its permissions"
        ) from error


def _opened(path: Path) -> BinaryIO:
    return cast("BinaryIO", gzip.open(path) if path.suffix == ".gz" else path.open("rb"))


def _encoding(start: bytes) -> tuple[int, str]:
    """Return the length of the byte order mark and the encoding it tells; UTF-8 where there is none."""
    return next(((len(mark), name) for mark, name in _MARKS if start.startswith(mark)), (0, "utf-8"))


def _pieces(file: BinaryIO, path: Path, key: str, offset: int, encoding: str) -> Iterator[str]:
    """Yield what follows byte `offset`; raises DataError at the first byte that is no text."""
    decoder = codecs.getincrementaldecoder(encoding)()
    while True:
        raw = file.read(_CHUNK)
        begin = offset - len(decoder.getstate()[0])
        try:
            text = decoder.decode(raw, final=not raw)
        except UnicodeDecodeError as error:
            raise _no_text(path, key, encoding, begin + error.start, error.object[error.start]) from error
        if "\0" in text:
            place = begin + len(text[: text.index("\0")].encode(encoding, "surrogatepass"))
            raise DataError(
                f"{key}: {path} holds a zero byte (at offset {place} of the file), so it is no text or it is UTF-16 "
                f"without a byte order mark; convert it: iconv -f UTF-16LE -t UTF-8 {path}"
            )
        offset += len(raw)
        if text:
            yield text
        if not raw:
            return


def _no_text(path: Path, key: str, encoding: str, offset: int, byte: int) -> DataError:
    """Return the error for a byte that does not belong to the encoding."""
    name = encoding.upper().removesuffix("-LE").removesuffix("-BE")
    line, column = _place(path, offset) if encoding == "utf-8" else (0, 0)
    where = f":{line}" if line else ""
    within = f"at column {column}, " if line else "at "
    convert = (
        f"zcat {path} | iconv -f LATIN1 -t UTF-8"
        if path.suffix == ".gz"
        else f"iconv -f LATIN1 -t UTF-8 {path}"
    )
    return DataError(
        f"{key}: {path}{where} is not {name} (byte {byte:#04x} {within}offset {offset} of the file); text is UTF-8, or "
        f"UTF-16 with a byte order mark; convert it: {convert}"
    )


def _place(path: Path, offset: int) -> tuple[int, int]:
    """Return line and column, both from 1 and in bytes, of a byte of the file."""
    line, begin, seen = 1, 0, 0
    with _opened(path) as file:
        while seen < offset and (raw := file.read(min(_CHUNK, offset - seen))):
            line += raw.count(b"\n")
            if (last := raw.rfind(b"\n")) >= 0:
                begin = seen + last + 1
            seen += len(raw)
    return line, offset - begin + 1

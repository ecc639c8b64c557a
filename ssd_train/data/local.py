"""Text, JSONL and Parquet files on disk, with errors that name the file and the line."""

from __future__ import annotations

import glob
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

from ssd_infer.errors import DataError
from ssd_train.config.schema import LocalTextConfig
from ssd_train.data.sources import Passage, TextSource, held_out

_TEXT_SUFFIXES = frozenset({".txt", ".text", ".md", ".rst"})
_JSON_SUFFIXES = frozenset({".jsonl", ".ndjson"})
_PARQUET_SUFFIXES = frozenset({".parquet", ".pq"})
_SUFFIXES = _TEXT_SUFFIXES | _JSON_SUFFIXES | _PARQUET_SUFFIXES
_PIECE = 64 * 1024
_HASHED = 1 << 20


def local_source(cfg: LocalTextConfig) -> TextSource:
    """Return the source of `cfg.path`; without `validation_path`, `validation_share` of it is held out."""
    files = find_files(cfg.path, "data.path")
    identity = [_file_hash(path) for path in files]
    if cfg.validation_path is None:
        train, validation = held_out(lambda: read_files(files, cfg.text_field), cfg.validation_share)
        identity.append(f"share={cfg.validation_share}")
    else:
        held = find_files(cfg.validation_path, "data.validation_path")
        identity.extend(["validation", *map(_file_hash, held)])
        train = lambda: read_files(files, cfg.text_field)  # noqa: E731
        validation = lambda: read_files(held, cfg.text_field)  # noqa: E731
    digest = hashlib.sha256("\0".join([*identity, cfg.text_field]).encode()).hexdigest()[:16]
    return TextSource("data.path", cfg.path, f"local-{digest}", train, validation)


def find_files(pattern: str, key: str) -> list[Path]:
    """Return the files a path, directory or glob `pattern` means, sorted; raise `DataError` if there are none."""
    path = Path(pattern).expanduser()
    if path.is_file():
        found = [path]
    elif path.is_dir():
        found = sorted(
            item for item in path.rglob("*") if item.suffix.lower() in _SUFFIXES and item.is_file()
        )
    else:
        found = sorted(Path(item) for item in _matches(path) if Path(item).is_file())
    if not found:
        what = "the directory holds no text, JSONL or Parquet file" if path.is_dir() else "no such file"
        raise DataError(
            f"{key}: {what} (got {pattern!r}, from {Path.cwd()}); "
            "give a file, a directory or a glob such as 'texts/*.jsonl'"
        )
    for item in found:
        if item.suffix.lower() not in _SUFFIXES:
            raise DataError(
                f"{key}: must be one of {', '.join(sorted(_SUFFIXES))} (got {str(item)!r}); "
                "rename the file or convert it to one of these"
            )
    return found


def _matches(pattern: Path) -> list[str]:
    return glob.glob(str(pattern), recursive=True)  # noqa: PTH207 -- Path.glob takes no absolute pattern


def read_files(files: list[Path], text_field: str) -> Iterator[Passage]:
    """Yield the passages of `files` in order; raise `DataError` at the first thing that is not text."""
    for path in files:
        yield from _reader(path)(path, text_field)


def _reader(path: Path) -> Callable[[Path, str], Iterator[Passage]]:
    suffix = path.suffix.lower()
    if suffix in _JSON_SUFFIXES:
        return read_jsonl
    return read_parquet if suffix in _PARQUET_SUFFIXES else read_text


def read_text(path: Path, _text_field: str = "") -> Iterator[Passage]:
    """Yield a text file as one document, in pieces of some 64 KiB cut at line ends to bound memory."""
    piece: list[str] = []
    size = 0
    for _, line in _lines(path):
        if size >= _PIECE:
            yield Passage("".join(piece), ends=False)
            piece, size = [], 0
        piece.append(line)
        size += len(line)
    if size:
        yield Passage("".join(piece))


def read_jsonl(path: Path, text_field: str) -> Iterator[Passage]:
    """Yield field `text_field` of every line; raise `DataError` naming file, line and what is wrong with it."""
    for number, line in _lines(path):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(
                f"data.path: {where} is not JSON: {error.msg} at column {error.colno} "
                f"(got {line.strip()[:60]!r}); put one JSON object on each line"
            ) from error
        if not isinstance(row, dict):
            raise DataError(
                f"data.path: {where} must be a JSON object (got {type(row).__name__}); "
                f'put one object such as {{"{text_field}": "…"}} on each line'
            )
        if text_field not in row:
            raise _missing_field(text_field, where, list(row))
        yield Passage(_checked(row[text_field], text_field, where))


def read_parquet(path: Path, text_field: str) -> Iterator[Passage]:
    """Yield column `text_field` of a Parquet file, one row group's batch in memory at a time."""
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    try:
        with pq.ParquetFile(path) as file:
            if text_field not in file.schema_arrow.names:
                raise _missing_field(text_field, str(path), file.schema_arrow.names)
            number = 0
            for batch in file.iter_batches(batch_size=1024, columns=[text_field]):
                for value in batch.column(0).to_pylist():
                    yield Passage(_checked(value, text_field, f"{path} row {number}"))
                    number += 1
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(
            f"data.path: {path} is not a readable Parquet file ({error}); write it again"
        ) from error


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield `(number, line)` from 1; raise `DataError` at the first line that is not UTF-8."""
    number = 0
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"data.path: {path}:{number} is not UTF-8 (byte {error.object[error.start]:#04x} at column "
            f"{error.start + 1}); convert it: iconv -f LATIN1 -t UTF-8 {path}"
        ) from error
    except OSError as error:
        raise DataError(
            f"data.path: {path} cannot be read ({error.strerror}); check its permissions"
        ) from error


def _checked(value: object, text_field: str, where: str) -> str:
    if not isinstance(value, str):
        raise DataError(
            f"data.text_field: field {text_field!r} must hold text (got {type(value).__name__} in {where}); "
            "remove the row or choose another field"
        )
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            f"data.path: {where} holds half of a surrogate pair ({error.object[error.start]!r}), which is not "
            "text; write the file again with ensure_ascii=False"
        ) from error
    return value


def _missing_field(text_field: str, where: str, found: list[str]) -> DataError:
    names = ", ".join(map(str, found)) or "none"
    return DataError(
        f"data.text_field: no such field in {where} (got {text_field!r}, found {names}); "
        f"try data.text_field={found[0] if found else 'text'}"
    )


def _file_hash(path: Path) -> str:
    """Return a hash of the size, first and last MiB of `path`: cheap, and the same on another machine."""
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        digest.update(file.read(_HASHED))
        if size > 2 * _HASHED:
            file.seek(size - _HASHED)
        digest.update(file.read(_HASHED))
    return digest.hexdigest()

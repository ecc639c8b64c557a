"""Text, JSONL and Parquet files on disk, with errors that name the file and the line."""

from __future__ import annotations

import glob
from collections.abc import Iterator
from pathlib import Path

from ssd_infer.checkpoint.content import files_digest, text_digest
from ssd_infer.corpus.textfiles import check_text, read_lines, read_objects
from ssd_infer.errors import DataError
from ssd_train.config.schema import LocalTextConfig
from ssd_train.data.sources import Passage, TextSource, held_out

_TEXT_SUFFIXES = frozenset({".txt", ".text", ".md", ".rst"})
_JSON_SUFFIXES = frozenset({".jsonl", ".ndjson"})
_PARQUET_SUFFIXES = frozenset({".parquet", ".pq"})
PAIR_SUFFIXES = _JSON_SUFFIXES | _PARQUET_SUFFIXES
"""Files whose rows have several fields."""
SUFFIXES = _TEXT_SUFFIXES | PAIR_SUFFIXES
"""Files text is read from."""
_PIECE = 64 * 1024


def local_source(cfg: LocalTextConfig) -> TextSource:
    """Return the source of `cfg.path`; without `validation_path`, `validation_share` of it is held out."""
    files = find_files(cfg.path, "data.path")
    contents = local_contents(cfg)
    identity: list[object] = [*contents.values(), cfg.text_field]
    if cfg.validation_path is None:
        train, validation = held_out(lambda: read_files(files, cfg.text_field), cfg.validation_share)
        identity.append(f"share={cfg.validation_share}")
    else:
        held = find_files(cfg.validation_path, "data.validation_path")
        train = lambda: read_files(files, cfg.text_field)  # noqa: E731
        validation = lambda: read_files(held, cfg.text_field, "data.validation_path")  # noqa: E731
    fingerprint = f"local-{text_digest(identity)[:16]}"
    return TextSource("data.path", cfg.path, fingerprint, train, validation, contents)


def local_contents(cfg: LocalTextConfig) -> dict[str, str]:
    """Return hashes of all that the files of `cfg` hold, by dotted key; raise `DataError` for what cannot be read."""
    suffixes = PAIR_SUFFIXES if cfg.prompt_field is not None else SUFFIXES
    paths = {"data.path": cfg.path, "data.validation_path": cfg.validation_path}
    return {
        key: files_digest(find_files(path, key, suffixes), key)
        for key, path in paths.items()
        if path is not None
    }


def find_files(pattern: str, key: str, suffixes: frozenset[str] = SUFFIXES) -> list[Path]:
    """Return the files a path, directory or glob `pattern` means, sorted; raise `DataError` if there are none."""
    path = Path(pattern).expanduser()
    if path.is_file():
        found = [path]
    elif path.is_dir():
        found = sorted(item for item in path.rglob("*") if item.suffix.lower() in suffixes and item.is_file())
    else:
        found = sorted(Path(item) for item in _matches(path) if Path(item).is_file())
    if not found:
        kinds = "text, JSONL or Parquet" if suffixes == SUFFIXES else "JSONL or Parquet"
        what = f"the directory holds no {kinds} file" if path.is_dir() else "no such file"
        raise DataError(
            f"{key}: {what} (got {pattern!r}, from {Path.cwd()}); "
            "give a file, a directory or a glob such as 'texts/*.jsonl'"
        )
    for item in found:
        if item.suffix.lower() not in suffixes:
            raise DataError(
                f"{key}: must be one of {', '.join(sorted(suffixes))} (got {str(item)!r}); "
                "rename the file or convert it to one of these"
            )
    return found


def _matches(pattern: Path) -> list[str]:
    return glob.glob(str(pattern), recursive=True)  # noqa: PTH207 -- Path.glob takes no absolute pattern


def read_files(files: list[Path], text_field: str, key: str = "data.path") -> Iterator[Passage]:
    """Yield the passages of `files` in order; raise `DataError`, which names `key`, at the first that is no text."""
    for path in files:
        if path.suffix.lower() in _TEXT_SUFFIXES:
            yield from read_text(path, key)
        else:
            yield from (Passage(text) for (text,) in read_rows(path, {"data.text_field": text_field}, key))


def read_text(path: Path, key: str = "data.path") -> Iterator[Passage]:
    """Yield a text file as one document, in pieces of some 64 KiB cut at line ends to bound memory."""
    piece: list[str] = []
    size = 0
    for _, line in read_lines(path, key):
        if size >= _PIECE:
            yield Passage("".join(piece), ends=False)
            piece, size = [], 0
        piece.append(line)
        size += len(line)
    if size:
        yield Passage("".join(piece))


def read_rows(path: Path, fields: dict[str, str], key: str = "data.path") -> Iterator[tuple[str, ...]]:
    """Yield the texts of `fields` (names by the dotted key that gave them) of every row of JSONL or Parquet.

    Raises `DataError` naming file, line (or row) and what is wrong with it.
    """
    rows = _parquet_rows if path.suffix.lower() in _PARQUET_SUFFIXES else _json_rows
    yield from rows(path, fields, key)


def _json_rows(path: Path, fields: dict[str, str], key: str) -> Iterator[tuple[str, ...]]:
    for where, _, row in read_objects(path, key):
        for option, name in fields.items():
            if name not in row:
                raise _missing_field(option, name, where, list(row))
        yield tuple(_checked(row[name], option, name, where, key) for option, name in fields.items())


def _parquet_rows(path: Path, fields: dict[str, str], key: str) -> Iterator[tuple[str, ...]]:
    """Yield one row group's batch in memory at a time."""
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    try:
        with pq.ParquetFile(path) as file:
            for option, name in fields.items():
                if name not in file.schema_arrow.names:
                    raise _missing_field(option, name, str(path), file.schema_arrow.names)
            number = 0
            for batch in file.iter_batches(batch_size=1024, columns=list(fields.values())):
                for row in batch.to_pylist():
                    where = f"{path} row {number}"
                    yield tuple(
                        _checked(row[name], option, name, where, key) for option, name in fields.items()
                    )
                    number += 1
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{key}: {path} is not a readable Parquet file ({error}); write it again") from error


def _checked(value: object, option: str, name: str, where: str, key: str) -> str:
    if not isinstance(value, str):
        raise DataError(
            f"{option}: field {name!r} must hold text (got {type(value).__name__} in {where}); "
            "remove the row or choose another field"
        )
    check_text(value, f"{key}: {where}")
    return value


def _missing_field(option: str, name: str, where: str, found: list[str]) -> DataError:
    names = ", ".join(map(str, found)) or "none"
    return DataError(
        f"{option}: no such field in {where} (got {name!r}, found {names}); "
        f"try {option}={found[0] if found else 'text'}"
    )

"""Utterances with transcripts as JSON lines, one object an utterance: `audio` (path, relative to the file) and `text`.

A training run writes its held-out sets with `save_utterances` into `RUN/heldout/NAME/`; the evaluation of a checkpoint
finds them there: `dev` sets thresholds, all others are measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ssd_infer.corpus.textfiles import read_objects
from ssd_infer.errors import DataError
from ssd_infer.families.speech.audio import AudioError, read_audio
from ssd_infer.jsonio import to_json

FILE = "manifest.jsonl"
FOLDER = "heldout"
DEV = "dev"
"""The set that thresholds are chosen on; never measured."""
MOST_UNREADABLE = 0.01
"""Largest share of a manifest whose audio may be unusable; each is counted, more is an error."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a manifest: where the audio is, what is said, and whatever else the line tells."""

    audio: Path
    text: str
    number: int
    more: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Utterance:
    """Checked mono `samples` `(N,)` float32 with their transcript."""

    samples: Tensor
    text: str
    name: str
    more: dict[str, Any] = field(default_factory=dict)


def read_manifest(path: str | Path, key: str = "manifest") -> list[Line]:
    """Return the lines of a manifest; raises DataError, which names `key` and the line, for what is no such line."""
    path = Path(path)
    lines = [_line(path, number, value) for _, number, value in read_objects(path, key)]
    if not lines:
        raise DataError(f'{path}: holds no lines; each must read {{"audio": PATH, "text": WORDS}}')
    return lines


def read_utterances(lines: Sequence[Line], rate: int) -> tuple[list[Utterance], list[str]]:
    """Read the audio of `lines` at `rate` Hz; return the utterances, and why each of the skipped ones was skipped.

    Raises DataError when more than `MOST_UNREADABLE` of them are unusable.
    """
    found, skipped = [], []
    for line in lines:
        try:
            audio = read_audio(line.audio, rate)
        except AudioError as error:
            skipped.append(f"line {line.number}: {error}")
        else:
            found.append(Utterance(audio.samples, line.text, audio.name, line.more))
    if len(skipped) > MOST_UNREADABLE * len(lines):
        some = "\n".join(skipped[:5])
        raise DataError(f"{len(skipped)} of {len(lines)} audio files cannot be used:\n{some}")
    return found, skipped


def save_utterances(folder: Path, utterances: Iterable[Utterance], rate: int) -> Path:
    """Write utterances as 16-bit WAV files with their manifest into `folder`; return the manifest's path."""
    import soundfile

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for index, item in enumerate(utterances):
        name = f"{index:05d}.wav"
        soundfile.write(folder / name, item.samples.numpy().astype(np.float32), rate, subtype="PCM_16")
        lines.append(to_json({"audio": name, "text": item.text, **item.more}))
    (folder / FILE).write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return folder / FILE


def heldout_sets(checkpoint: str | Path) -> dict[str, Path]:
    """Return the manifests of the held-out sets that belong to a checkpoint, by name; its own come before its run's."""
    return dict(_sets(Path(checkpoint).resolve()))


def _sets(checkpoint: Path) -> Iterator[tuple[str, Path]]:
    for root in (checkpoint, *checkpoint.parents[1:2]):
        found = sorted((root / FOLDER).glob(f"*/{FILE}"))
        if found:
            yield from ((path.parent.name, path) for path in found)
            return


def _line(path: Path, number: int, value: dict[str, Any]) -> Line:
    where = f"{path}, line {number}"
    for key in ("audio", "text"):
        if not isinstance(value.get(key), str) or not value[key].strip():
            raise DataError(f"{where}: {key!r} must be a text that is not empty (got {value.get(key)!r})")
    audio, text = Path(value.pop("audio")), value.pop("text")
    return Line(audio if audio.is_absolute() else path.parent / audio, text, number, value)

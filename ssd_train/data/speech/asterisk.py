"""Telephone prompts of Debian's asterisk-core-sounds packages, unpacked: real voices with transcripts.

Unpack both packages into one directory, for example with `dpkg-deb -x`: `asterisk-core-sounds-en` holds the
transcripts, `asterisk-core-sounds-en-wav` the recordings. They are no part of the project and are only read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ssd_infer.checkpoint.content import files_digest, text_digest
from ssd_infer.corpus.textfiles import read_lines
from ssd_infer.errors import DataError
from ssd_infer.families.speech.audio import AudioError, read_audio
from ssd_infer.families.speech.utterances import Utterance
from ssd_train.config.schema_speech import AsteriskSpeechConfig
from ssd_train.data.sources import content_share
from ssd_train.data.speech.grammar import DIGITS
from ssd_train.data.speech.screening import Tally
from ssd_train.data.speech.sources import SpeechSource, Stream, speech_fingerprint

EXCLUDED = frozenset(
    {"invalid", "basic-pbx-ivr-main", "tt-monkeys", "tt-monkeysintro", "tt-allbusy", "tt-somethingwrong"}
)
"""Prompts whose transcript says something else than the recording, or whose recording is no speech."""

CORRECTIONS = {"umute": "unmute", "un-indentified": "unidentified"}
"""Misspelt words of the transcripts."""

SYMBOLS = {"#": "pound", "*": "star"}
_DIGITS = dict(enumerate(DIGITS))


def normalise(text: str) -> str:
    """Return a transcript as it is spoken, in lower-case letters, apostrophes and single spaces."""
    text = text.lower()
    for wrong, right in CORRECTIONS.items():
        text = text.replace(wrong, right)
    text = text.replace("’", "'")
    for symbol, word in SYMBOLS.items():
        text = text.replace(symbol, f" {word} ")
    text = re.sub(r"\d", lambda match: f" {_DIGITS[int(match.group())]} ", text)
    text = re.sub(r"(?<![a-z])'|'(?![a-z])|[^\w']|_", " ", text)
    return " ".join(text.split())


def transcripts(path: Path) -> dict[str, str]:
    """Return the normalised text of each prompt by its path without suffix; bracketed and excluded lines left out.

    Lines read `relative/path: text`; `;` begins a comment. Raises DataError when there are none.
    """
    found: dict[str, str] = {}
    for _, line in read_lines(path, "data.path"):
        name, colon, text = line.partition(":")
        name = name.strip()
        if not colon or name.startswith(";") or not _is_speech(name, text):
            continue
        spoken = normalise(text)
        if spoken:
            found[name] = spoken
    if not found:
        raise DataError(f"data.path: {path} holds no transcripts of the form `path: text`")
    return found


def _is_speech(name: str, text: str) -> bool:
    return name not in EXCLUDED and not name.startswith("silence/") and not re.search(r"[\[\]<>]", text)


def asterisk_source(cfg: AsteriskSpeechConfig) -> SpeechSource:
    """Return the prompts of an unpacked package; raise DataError when transcripts or recordings are missing."""
    texts, folder = transcripts(_one(cfg, "*.txt*")), _recordings(cfg)
    contents = {"data.path": _content(texts, folder)}

    def part(name: str) -> Stream:
        def utterances(tally: Tally) -> Iterator[Utterance]:
            chosen = {key: text for key, text in texts.items() if part_of(text, cfg) == name}
            yield from _read(folder, chosen, cfg.sampling_rate, tally)

        return utterances

    return SpeechSource(
        name=cfg.path,
        fingerprint=speech_fingerprint(cfg, contents),
        contents=contents,
        train=part("train"),
        heldout={"dev": part("dev"), "test": part("test")},
    )


def _content(texts: dict[str, str], folder: Path) -> str:
    """Return a hash of all transcripts and of the recordings that belong to them."""
    found = [path for name in sorted(texts) if (path := folder / f"{name}.wav").is_file()]
    return text_digest([sorted(texts.items()), files_digest(found, "data.path", folder)])


def part_of(text: str, cfg: AsteriskSpeechConfig) -> str:
    """Return train, dev or test by a hash of the normalised text, so that equal texts stay together."""
    share = content_share(text)
    if share < cfg.validation_share:
        return "dev"
    return "test" if share < cfg.validation_share + cfg.test_share else "train"


def _one(cfg: AsteriskSpeechConfig, pattern: str) -> Path:
    found = sorted(Path(cfg.path).rglob(f"core-sounds-{cfg.language}{pattern}"))
    if not found:
        raise DataError(
            f"data.path: no transcripts core-sounds-{cfg.language}.txt(.gz) below (got {cfg.path!r}); unpack "
            f"asterisk-core-sounds-{cfg.language} there: dpkg-deb -x PACKAGE.deb DIRECTORY"
        )
    return found[0]


def _recordings(cfg: AsteriskSpeechConfig) -> Path:
    """Return the voice's directory: the one below `sounds/` that begins with the language and holds recordings."""
    voices = sorted(path for path in Path(cfg.path).rglob(f"{cfg.language}_*") if any(path.glob("*.wav")))
    if not voices:
        raise DataError(
            f"data.path: no recordings {cfg.language}_*/….wav below (got {cfg.path!r}); unpack "
            f"asterisk-core-sounds-{cfg.language}-wav there"
        )
    return voices[0]


def _read(folder: Path, texts: dict[str, str], rate: int, tally: Tally) -> Iterator[Utterance]:
    """Yield the recordings that are there; a transcript without one is no error, a damaged recording is counted."""
    for name, text in sorted(texts.items()):
        path = folder / f"{name}.wav"
        if not path.is_file():
            continue
        try:
            audio = read_audio(path, rate)
        except AudioError as error:
            tally.seen += 1
            tally.skip("whose audio cannot be used", str(error))
        else:
            yield Utterance(audio.samples, text, name)

"""Speech datasets of the Hugging Face hub, or saved to disk by `datasets`: an audio column and a text column."""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from ssd_infer.checkpoint.content import files_digest, text_digest
from ssd_infer.errors import DataError
from ssd_infer.families.speech.audio import AudioError, from_array, read_audio
from ssd_infer.families.speech.utterances import Utterance
from ssd_train.config.schema_speech import HubSpeechConfig
from ssd_train.data.hub import COMMIT, hub_content, load_options, unloadable
from ssd_train.data.sources import content_share
from ssd_train.data.speech.screening import Tally
from ssd_train.data.speech.sources import SpeechSource, Stream, speech_fingerprint


def hub_source(cfg: HubSpeechConfig) -> SpeechSource:
    """Return the source of a hub dataset; raise DataError when dataset, split or column does not exist.

    Without `validation_split` a share of the training split, by a hash of the text, is `dev`; without `test_split` it
    is `test` as well.
    """
    content = hub_content(cfg.name, cfg.subset, cfg.revision)
    train = _load(cfg, cfg.split, content)
    dev = _load(cfg, cfg.validation_split, content) if cfg.validation_split else None
    test = _load(cfg, cfg.test_split, content) if cfg.test_split else None
    contents = {
        "data.name": _content(cfg, content, [part for part in (train, dev, test) if part is not None])
    }

    def part(dataset: Any, *, held: bool | None = None, most: int = 0) -> Stream:
        def utterances(tally: Tally) -> Iterator[Utterance]:
            rows = _utterances(dataset, cfg, tally)
            if held is not None and dev is None:
                rows = (row for row in rows if (content_share(row.text) < cfg.validation_share) == held)
            yield from islice(rows, most) if most else rows

        return utterances

    most = cfg.heldout_utterances
    held = part(train, held=True, most=most) if dev is None else part(dev, most=most)
    return SpeechSource(
        name=cfg.name,
        fingerprint=speech_fingerprint(cfg, contents),
        contents=contents,
        train=part(train, held=False, most=cfg.max_utterances),
        heldout={"dev": held, "test": held if test is None else part(test, most=most)},
    )


def _content(cfg: HubSpeechConfig, content: str, datasets: list[Any]) -> str:
    """Return what a dataset holds; of one on disk also the recordings its rows name outside its folder."""
    if content.startswith(COMMIT):
        return content
    rows = (row[cfg.audio_field] for part in datasets for row in part.select_columns([cfg.audio_field]))
    named = dict.fromkeys(path for cell in rows if (path := _outside(cell)) is not None)
    inside = Path(cfg.name).resolve()
    paths = (path for path in named if inside not in path.resolve().parents)
    return text_digest([content, files_digest(paths, "data.name")])


def _outside(cell: Any) -> Path | None:
    """Return the file an audio cell only names, where it is there."""
    held = isinstance(cell, dict) and (cell.get("array") is not None or cell.get("bytes") is not None)
    name = cell.get("path") if isinstance(cell, dict) else cell
    path = Path(name) if isinstance(name, str) and not held else None
    return path if path is not None and path.is_file() else None


def _load(cfg: HubSpeechConfig, split: str, content: str) -> Any:
    """Return one split with undecoded audio; every failure becomes a sentence with a remedy."""
    import datasets

    try:
        if (Path(cfg.name) / "dataset_dict.json").exists():
            dataset = datasets.load_from_disk(cfg.name)[split]
        else:
            dataset = datasets.load_dataset(
                cfg.name,
                cfg.subset,
                split=split,
                streaming=cfg.streaming,
                **load_options(cfg.name, cfg.revision, content),
            )
        names = dataset.column_names or list(next(iter(dataset), {}))
    except (
        Exception
    ) as error:  # datasets raises a dozen types from five libraries; none is skipped, all are said
        raise unloadable(cfg.name, cfg.subset, split, error) from error
    for key, field in (("audio_field", cfg.audio_field), ("text_field", cfg.text_field)):
        if field not in names:
            raise DataError(
                f"data.{key}: no such column in {cfg.name} (got {field!r}, found {', '.join(names)})"
            )
    features = getattr(dataset, "features", None) or {}
    if isinstance(features.get(cfg.audio_field), datasets.Audio):
        # Bytes and not samples: `datasets` would need torchcodec to decode, and decoding is checked here.
        dataset = dataset.cast_column(cfg.audio_field, datasets.Audio(decode=False))
    return dataset


def _utterances(dataset: Any, cfg: HubSpeechConfig, tally: Tally) -> Iterator[Utterance]:
    for number, row in enumerate(dataset):
        name = f"row {number}"
        try:
            samples = _samples(row[cfg.audio_field], cfg.sampling_rate, name)
        except AudioError as error:
            tally.seen += 1
            tally.skip("whose audio cannot be used", str(error))
        else:
            yield Utterance(samples, str(row[cfg.text_field] or ""), name)


def _samples(value: Any, rate: int, name: str) -> Any:
    """Return the samples of an audio cell: encoded bytes, a path, or an array with its sampling rate."""
    import soundfile

    if isinstance(value, dict) and value.get("array") is not None:
        return from_array(value["array"], value.get("sampling_rate"), rate, name).samples
    data, path = (value.get("bytes"), value.get("path")) if isinstance(value, dict) else (None, value)
    if data is not None:
        try:
            decoded, found = soundfile.read(io.BytesIO(data), dtype="float32")
        except soundfile.SoundFileError as error:
            raise AudioError(f"{name}: is no audio that can be read ({error})") from error
        return from_array(decoded, int(found), rate, name).samples
    if path is None:
        raise AudioError(f"{name}: holds no audio")
    return read_audio(path, rate).samples

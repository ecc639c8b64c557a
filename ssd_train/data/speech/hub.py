"""Speech datasets of the Hugging Face hub, or saved to disk by `datasets`: an audio column and a text column."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from ssd_infer.errors import DataError
from ssd_infer.speech.audio import AudioError, from_array, read_audio
from ssd_infer.speech.manifest import Utterance
from ssd_train.config.schema_speech import HubSpeechConfig
from ssd_train.data.sources import content_share
from ssd_train.data.speech.screening import Tally
from ssd_train.data.speech.sources import SpeechSource, Stream


def hub_source(cfg: HubSpeechConfig) -> SpeechSource:
    """Return the source of a hub dataset; raise DataError when dataset, split or column does not exist.

    Without `validation_split` a share of the training split, by a hash of the text, is `dev`; without `test_split` it
    is `test` as well.
    """
    train = _load(cfg, cfg.split)
    dev = _load(cfg, cfg.validation_split) if cfg.validation_split else None
    test = _load(cfg, cfg.test_split) if cfg.test_split else None

    def part(dataset: Any, *, held: bool | None = None, most: int = 0) -> Stream:
        def utterances(tally: Tally) -> Iterator[Utterance]:
            rows = _utterances(dataset, cfg, tally)
            if held is not None and dev is None:
                rows = (row for row in rows if (content_share(row.text) < cfg.validation_share) == held)
            yield from islice(rows, most) if most else rows

        return utterances

    most = cfg.heldout_utterances
    held = part(train, held=True, most=most) if dev is None else part(dev, most=most)
    facts: list[object] = [
        cfg.name,
        cfg.subset,
        cfg.split,
        cfg.audio_field,
        cfg.text_field,
        cfg.max_utterances,
    ]
    facts += [cfg.validation_split, cfg.validation_share, cfg.sampling_rate, cfg.max_seconds]
    digest = hashlib.sha256(repr([*facts, getattr(train, "_fingerprint", "")]).encode()).hexdigest()[:16]
    return SpeechSource(
        name=cfg.name,
        fingerprint=f"hub-{digest}",
        train=part(train, held=False, most=cfg.max_utterances),
        heldout={"dev": held, "test": held if test is None else part(test, most=most)},
    )


def _load(cfg: HubSpeechConfig, split: str) -> Any:
    """Return one split with undecoded audio; every failure becomes a sentence with a remedy."""
    import datasets

    try:
        if (Path(cfg.name) / "dataset_dict.json").exists():
            dataset = datasets.load_from_disk(cfg.name)[split]
        else:
            dataset = datasets.load_dataset(cfg.name, cfg.subset, split=split, streaming=cfg.streaming)
        names = dataset.column_names or list(next(iter(dataset), {}))
    except (
        Exception
    ) as error:  # datasets raises a dozen types from five libraries; none is skipped, all are said
        reason = " ".join(str(error).split())[:300]
        raise DataError(
            f"data.name: the dataset cannot be loaded (got {cfg.name!r}, subset {cfg.subset!r}, split {split!r}): "
            f"{type(error).__name__}: {reason}; check the name, the network and HF_TOKEN"
        ) from error
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

"""Speech to train on: a source, a processor, features in length-bucketed batches, and held-out sets on disk."""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from ssd_infer.atomic import write_text
from ssd_infer.checkpoint.content import text_digest
from ssd_infer.errors import DataError
from ssd_infer.families.speech.utterances import (
    DEV,
    FILE,
    FOLDER,
    read_manifest,
    read_utterances,
    save_utterances,
)
from ssd_infer.jsonio import to_json
from ssd_infer.models.asr_processor import CTCASRProcessor
from ssd_train.config.schema import Root
from ssd_train.config.schema_speech import SpeechDataConfig
from ssd_train.data.hub import COMMIT
from ssd_train.data.speech.batches import BatchedSamples, Samples, collate
from ssd_train.data.speech.open_speech import open_speech
from ssd_train.data.speech.screening import Screen, Tally
from ssd_train.data.speech.sources import SpeechSource
from ssd_train.data.speech.store import StoredSpeech, is_complete, write_speech
from ssd_train.data.tokenizer import vocabulary_hash

__all__ = ["SpeechData", "build", "collate"]

logger = logging.getLogger(__name__)

_VALIDATION_ROWS = 8
_IDENTITY = "identity.json"


@dataclass(slots=True)
class SpeechData:
    """Training batches, held-out batches of the `dev` set, and the processor that made both."""

    train: BatchedSamples
    validation: BatchedSamples
    processor: CTCASRProcessor
    sample_tokens: int
    hours: float

    def describe(self) -> str:
        """Return one line a person can read."""
        samples = len(self.train.samples)
        return f"{samples:,} training utterances ({self.hours:.2f} h) in batches of about {self.sample_tokens} frames"


def build(cfg: Root, run_dir: Path, processor: CTCASRProcessor, encoder: Any, batches: int = 0) -> SpeechData:
    """Read `cfg.data` for a model with `processor` and `encoder` configuration; raise DataError when it cannot.

    Passes over the data are laid out until there are `batches`, what the whole run takes on all its processes; with 0
    what one process takes.

    Every rank may call it: one process does the work behind a file lock, the others read what it wrote. Held-out sets
    go to `run_dir/heldout/NAME`, where the evaluation of a checkpoint finds them.
    """
    data = cfg.data
    source = open_speech(data, cfg.seed)
    assert isinstance(data, SpeechDataConfig)
    extractor = processor.feature_extractor
    screen = Screen(processor.tokenizer, encoder, extractor.hop_length, data.max_seconds, data.sampling_rate)
    run_dir.mkdir(parents=True, exist_ok=True)
    with FileLock(str(run_dir / ".data.lock")):
        identity = text_digest([source.fingerprint, cfg.seed, _form(screen, extractor)])
        _write_heldout(source, run_dir, screen, identity)
    samples, seconds = _training(cfg, source, screen, extractor)
    budget = int(data.batch_seconds * 100)
    needed = batches or cfg.train.max_steps * cfg.train.batch_size * cfg.train.grad_accum
    train = BatchedSamples(samples, budget, data.batch_rows, seed=cfg.seed, at_least=needed)
    dev = _ListedSpeech(run_dir / FOLDER / DEV / FILE, extractor.extract, screen)
    validation = BatchedSamples(dev, budget, _VALIDATION_ROWS, seed=cfg.seed)
    found = SpeechData(train, validation, processor, budget, seconds / 3600)
    logger.info("data: %s", found.describe())
    return found


def _training(cfg: Root, source: SpeechSource, screen: Screen, extractor: Any) -> tuple[Samples, float]:
    """Return the training samples and their seconds of audio."""
    tally = Tally(source.name)
    if source.compose is not None:
        clips = list(screen.keep(source.train(tally), tally))
        tally.close()
        _require(len(clips), source)
        strings: Any = source.compose(clips, screen, extractor.extract)
        return strings, strings.seconds
    cache = Path(cfg.data.cache_dir or Path(cfg.output_root) / ".cache")
    folder = cache / f"{source.fingerprint}-{_form(screen, extractor)}"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(str(folder / ".lock")):
        if not is_complete(folder):
            kept = screen.keep(source.train(tally), tally)
            write_speech(folder, kept, extractor.extract, screen.labels, screen.rate)
            try:
                tally.close()
                _require(tally.seen - tally.skipped, source)
            except DataError:
                (folder / "index.json").unlink()
                raise
            on_hub = any(content.startswith(COMMIT) for content in source.contents.values())
            if not on_hub and open_speech(cfg.data, cfg.seed).fingerprint != source.fingerprint:
                (folder / "index.json").unlink()
                raise DataError(
                    f"data: {source.name} was changed while it was read; start again when it is whole"
                )
    stored = StoredSpeech(folder)
    return stored, stored.seconds


def _form(screen: Screen, extractor: Any) -> str:
    """Return a hash of what features and labels depend on besides the speech: extractor, vocabulary, frame rate."""
    features = [type(extractor).__name__, extractor.feature_size, extractor.hop_length, extractor.band]
    vocabulary = vocabulary_hash(screen.tokenizer)
    return text_digest([*features, vocabulary, screen.encoder.subsampling_factor, screen.rate])[:16]


def _require(count: int, source: SpeechSource) -> None:
    if not count:
        raise DataError(
            f"data: {source.name} holds no utterance to train on; give a source that is not empty"
        )


def _write_heldout(source: SpeechSource, run_dir: Path, screen: Screen, identity: str) -> None:
    """Write every held-out set that is not there yet; `FILE` comes last, so a set is whole or absent.

    Sets of other speech, left by a start that never trained, are replaced.
    """
    folder = run_dir / FOLDER
    _clear_other(run_dir, identity)
    for name, stream in source.heldout.items():
        if (folder / name / FILE).exists():
            continue
        tally = Tally(f"{source.name}, held-out set {name}")
        kept = list(screen.keep(stream(tally), tally))
        tally.close()
        if not kept:
            raise DataError(f"data: {source.name} leaves nothing for the held-out set {name!r}")
        save_utterances(folder / name, kept, screen.rate)


def _clear_other(run_dir: Path, identity: str) -> None:
    """Remove held-out sets that are not of `identity`; those of a checkpoint stay, its start was compared before."""
    folder = run_dir / FOLDER
    mark = folder / _IDENTITY
    if mark.exists() and json.loads(mark.read_text("utf-8")) == identity:
        return
    if any((run_dir / "checkpoints").glob("step-*")):
        return
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    write_text(mark, to_json(identity, indent=2))


class _ListedSpeech:
    """A held-out set in memory."""

    def __init__(self, manifest: Path, extract: Any, screen: Screen) -> None:
        """Read `manifest`, which this run wrote."""
        utterances, _ = read_utterances(read_manifest(manifest), screen.rate)
        self.rows = [
            {"features": extract(item.samples), "labels": screen.labels(item.text)} for item in utterances
        ]
        self.frames = np.asarray([len(row["features"]) for row in self.rows], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.rows[index]

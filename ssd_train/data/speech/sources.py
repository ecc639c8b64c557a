"""What a speech source is: a stream of training utterances and named held-out sets, all at one sampling rate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field

from ssd_infer.checkpoint.content import text_digest
from ssd_infer.families.speech.utterances import Utterance
from ssd_train.config.schema import DataConfig
from ssd_train.data.speech.batches import Samples
from ssd_train.data.speech.screening import Screen, Tally

_ELSEWHERE = frozenset(
    {
        *(
            "path",
            "cache_dir",
            "block_size",
            "validation_blocks",
            "tokenizer_vocab",
            "add_bos",
            "control_tokens",
        ),
        *("batch_seconds", "batch_rows"),
    }
)
"""Settings that change no utterance: where things lie, how batches are made, and what only text has."""

Stream = Callable[[Tally], Iterator[Utterance]]
"""Yields utterances; what cannot be read is counted in the tally."""


@dataclass(frozen=True, slots=True)
class SpeechSource:
    """Training and held-out speech of one data option."""

    name: str
    fingerprint: str
    """`speech_fingerprint`: changes with every byte read and every setting that chooses among it."""
    train: Stream
    heldout: dict[str, Stream]
    """Held-out sets by name; `dev` is there, thresholds are chosen and checkpoints compared on it."""
    contents: dict[str, str] = field(default_factory=dict)
    """Hashes of all that is read, by the dotted key that names it."""
    compose: Callable[[list[Utterance], Screen, Callable[..., object]], Samples] | None = None
    """Makes training samples of clips on the fly; None stores features of `train` on disk."""


def speech_fingerprint(cfg: DataConfig, contents: dict[str, str]) -> str:
    """Return what tells the speech of `cfg` apart: content, not place, and all settings but those used elsewhere."""
    settings = {key: value for key, value in asdict(cfg).items() if key not in _ELSEWHERE}
    return f"{cfg.kind}-{text_digest([sorted(contents.items()), sorted(settings.items())])[:16]}"

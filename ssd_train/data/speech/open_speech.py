"""The speech source that a configuration describes."""

from __future__ import annotations

from ssd_infer.errors import DataError
from ssd_train.config.schema import DataConfig
from ssd_train.config.schema_speech import (
    AsteriskSpeechConfig,
    HubSpeechConfig,
    ManifestSpeechConfig,
    TTSSpeechConfig,
)
from ssd_train.data.speech.asterisk import asterisk_source
from ssd_train.data.speech.hub import hub_source
from ssd_train.data.speech.manifest import manifest_source
from ssd_train.data.speech.sources import SpeechSource
from ssd_train.data.speech.tts import tts_source


def open_speech(cfg: DataConfig, seed: int) -> SpeechSource:
    """Return the source `cfg` describes; raise `DataError` when it cannot be read or is no speech."""
    if isinstance(cfg, TTSSpeechConfig):
        return tts_source(cfg)
    if isinstance(cfg, ManifestSpeechConfig):
        return manifest_source(cfg, seed)
    if isinstance(cfg, AsteriskSpeechConfig):
        return asterisk_source(cfg)
    if isinstance(cfg, HubSpeechConfig):
        return hub_source(cfg)
    raise DataError(
        f"data.kind: must be speech for this recipe (got {cfg.kind!r}); try data=tts_speech, data=manifest, "
        "data=asterisk or data=hub_speech"
    )

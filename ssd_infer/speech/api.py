"""The Python interface for speech: `transcribe` audio of any rate and length with any way to draft."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from torch import nn

from ssd_infer.checks import Checks
from ssd_infer.engine.model_view import evaluating
from ssd_infer.engine.stats import Stats
from ssd_infer.errors import ConfigError, Problem
from ssd_infer.kinds import kind_of
from ssd_infer.loading import Loaded
from ssd_infer.speech.audio import Audio, from_array, read_audio
from ssd_infer.speech.calibrated import thresholds_of
from ssd_infer.speech.fast import fastest
from ssd_infer.speech.params import CTCDraftParams, canonical, check_name, parse
from ssd_infer.speech.recognise import batches, confidences, recognise
from ssd_infer.speech.result import ROUTES, RowResult
from ssd_infer.speech.segments import LONGEST_SECONDS, Segment, segments

BATCH_SIZE = 8


@dataclass(frozen=True, slots=True)
class SegmentText:
    """One part of a recording: from `start` to `end` in seconds, what was said and how it was decoded."""

    start: float
    end: float
    text: str
    route: str
    confidence: float


@dataclass(slots=True)
class TranscribeOutput:
    """What a `transcribe` call produced, one entry a recording."""

    texts: list[str]
    routes: list[str]
    """`gate`: the CTC transcript; `verify`: confirmed by the decoder; `fallback`: finished by it; `plain`: no draft.
    Of a recording in several parts, the one that took most work."""
    stats: Stats
    """Acceptance counters by recording; `report` holds audio seconds, decoding seconds and RTFx, their ratio."""
    confidences: list[float] = field(default_factory=list)
    """1 − H/ln V of the CTC head over frames that are not blank, averaged by length over the parts."""
    segments: list[list[SegmentText]] = field(default_factory=list)
    draft: str | None = None
    draft_params: dict[str, Any] = field(default_factory=dict)
    """Parameters of the draft, every `auto` settled."""


def transcribe(
    model: nn.Module | Loaded,
    audio: Any,
    sampling_rate: int | None = None,
    *,
    draft: str | None = None,
    draft_params: Mapping[str, Any] | None = None,
    batch_size: int = BATCH_SIZE,
    segment_seconds: float | None = None,
) -> TranscribeOutput:
    """Return the text of `audio`: an array or tensor, a path, or a list of those.

    Arrays are `(N,)`, `(N, channels)` or `(channels, N)` at `sampling_rate` Hz; files know their own. Recordings longer
    than `segment_seconds` (None: what the model was trained on) are cut where they are quietest. `draft=None` decodes
    plainly; `ctc_draft`, `ctc_draft:lossless` and the other names of `ssd_infer.speech.params` draft.

    Raises AudioError for audio that cannot be recognised, ConfigError for bad arguments.
    """
    loaded = _loaded(model)
    _check(draft, draft_params, batch_size, segment_seconds)
    name = None if draft is None else canonical(draft)
    module: Any = loaded.model
    params = _params(loaded, name, draft_params or {})
    rate = int(loaded.processor.sampling_rate)
    recordings = _recordings(audio, sampling_rate, rate)
    longest = segment_seconds or getattr(module.config, "max_audio_seconds", None) or LONGEST_SECONDS
    parts = [part for owner, item in enumerate(recordings) for part in segments(item, owner, longest)]
    with evaluating(module):
        done = _decode(loaded, parts, name, params, batch_size)
    return _output(loaded, recordings, parts, done, name, params)


def generate(*_: Any, **__: Any) -> NoReturn:
    """Refuse token prompts: a speech model takes audio."""
    remedy = "use ssd_infer.transcribe(model, audio, sampling_rate)"
    raise ConfigError([Problem("model", "must take text for generate", "a speech checkpoint", remedy)])


@dataclass(slots=True)
class _Done:
    """Results by segment, and sums over batches."""

    rows: list[RowResult]
    confidences: list[float]
    seconds: dict[str, float] = field(default_factory=dict)
    forwards: int = 0
    total: float = 0.0


def _decode(
    loaded: Loaded, parts: list[Segment], name: str | None, params: CTCDraftParams | None, size: int
) -> _Done:
    """Decode all parts in batches of like length; silent ones stay empty."""
    done = _Done([RowResult(route="silence") for _ in parts], [0.0] * len(parts))
    heard = [index for index, part in enumerate(parts) if not part.silent]
    model, start = fastest(loaded.model), time.perf_counter()
    for batch in batches([len(parts[index].samples) for index in heard], size):
        chosen = [heard[place] for place in batch]
        waves = [parts[index].samples for index in chosen]
        decoded, encoded = recognise(model, loaded.processor, waves, name, params)
        for index, row, sure in zip(chosen, decoded.rows, confidences(model, encoded), strict=True):
            done.rows[index], done.confidences[index] = row, sure
        done.forwards += decoded.work.forwards
        for phase, seconds in decoded.timer.seconds.items():
            done.seconds[phase] = done.seconds.get(phase, 0.0) + seconds
    done.total = time.perf_counter() - start
    return done


def _output(
    loaded: Loaded,
    recordings: list[Audio],
    parts: list[Segment],
    done: _Done,
    name: str | None,
    params: CTCDraftParams | None,
) -> TranscribeOutput:
    """Join the parts of each recording."""
    stats = Stats.empty(len(recordings))
    found: list[list[SegmentText]] = [[] for _ in recordings]
    for part, row, sure in zip(parts, done.rows, done.confidences, strict=True):
        rate = recordings[part.owner].rate
        text = loaded.processor.decode(row.tokens) if row.tokens else ""
        found[part.owner].append(SegmentText(part.start / rate, part.end / rate, text, row.route, sure))
        stats.rows[part.owner].add(row.stats)
    stats.finish()
    stats.total.forwards = {"target": done.forwards, "draft": 0}
    stats.total.seconds = done.seconds
    seconds = sum(item.seconds for item in recordings)
    stats.report = {
        "audio_seconds": seconds,
        "seconds": done.total,
        "rtfx": seconds / done.total if done.total else None,
    }
    return TranscribeOutput(
        [" ".join(item.text for item in items if item.text) for items in found],
        [max((item.route for item in items), key=ROUTES.index) for items in found],
        stats,
        [_mean_confidence(items) for items in found],
        found,
        name,
        {} if params is None else params.to_dict(),
    )


def _mean_confidence(items: list[SegmentText]) -> float:
    heard = [(item.end - item.start, item.confidence) for item in items if item.route != "silence"]
    weight = sum(length for length, _ in heard)
    return sum(length * sure for length, sure in heard) / weight if weight else 0.0


def _params(loaded: Loaded, name: str | None, given: Mapping[str, Any]) -> CTCDraftParams | None:
    if name is None:
        return None
    config: Any = loaded.model.config
    return parse(name, given, config.vocab_size, thresholds_of(loaded.model))


def _loaded(model: nn.Module | Loaded) -> Loaded:
    """Return model and processor; a bare model finds its processor where it was loaded from."""
    if not isinstance(model, Loaded) and getattr(model, "config", None) is None:
        rule, given = "must be a speech model for transcribe", type(model).__name__
        raise ConfigError([Problem("model", rule, given, "pass ssd_infer.load(DIR)")])
    loaded = model if isinstance(model, Loaded) else Loaded(model, None, "", kind_of(model.config))
    if kind_of(loaded.model.config) != "speech":
        rule = "must be a speech model for transcribe"
        given = getattr(loaded.model.config, "model_type", type(loaded.model).__name__)
        raise ConfigError([Problem("model", rule, given, "text models decode with ssd_infer.generate")])
    if loaded.processor is not None:
        return loaded
    from ssd_infer.models.asr_processor import load_processor

    config: Any = loaded.model.config
    where = str(getattr(config, "_name_or_path", "") or "")
    if not where or not Path(where).is_dir():
        rule = "must come with its processor"
        raise ConfigError([Problem("model", rule, type(loaded.model).__name__, "pass ssd_infer.load(DIR)")])
    return Loaded(loaded.model, None, where, "speech", load_processor(where))


def _recordings(audio: Any, sampling_rate: int | None, rate: int) -> list[Audio]:
    """Read or convert every recording; raises on the first that cannot be recognised."""
    plural = isinstance(audio, Sequence) and not isinstance(audio, str)
    numbers = plural and bool(audio) and isinstance(audio[0], int | float)
    items = list(audio) if plural and not numbers else [audio]
    if not items:
        raise ConfigError([Problem("audio", "must hold at least one recording", "none")])
    found = []
    for index, item in enumerate(items):
        if isinstance(item, str | Path):
            found.append(read_audio(item, rate))
            continue
        if sampling_rate is None:
            rule = "must be given for arrays"
            raise ConfigError([Problem("sampling_rate", rule, None, "the rate, in Hz, of the samples")])
        found.append(from_array(item, sampling_rate, rate, f"audio[{index}]" if plural else "audio"))
    return found


def _check(draft: Any, params: Any, batch_size: Any, segment_seconds: Any) -> None:
    """Raise ConfigError with every argument that is not of its kind or out of range."""
    checks = Checks()
    named = params is None or (isinstance(params, Mapping) and all(isinstance(key, str) for key in params))
    checks.require(named, "draft_params", "must map names of parameters to values", params, "give a dict")
    if draft is not None:
        check_name(draft, checks)
    elif named and params:
        checks.fail("draft_params", "need a draft", dict(params), "name one with draft=…")
    whole = isinstance(batch_size, int) and not isinstance(batch_size, bool)
    checks.require(whole and batch_size >= 1, "batch_size", "must be an integer of at least 1", batch_size)
    if segment_seconds is not None:
        number = isinstance(segment_seconds, int | float) and not isinstance(segment_seconds, bool)
        rule = "must be a number of seconds, at least 0.5, or None"
        good = number and math.isfinite(segment_seconds) and segment_seconds >= 0.5
        checks.require(good, "segment_seconds", rule, segment_seconds)
    checks.finish()

"""The Python interface for speech: `transcribe` audio of any rate and length with any way to draft."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from torch import nn

from ssd_infer.checkpoint.content import loaded_from
from ssd_infer.checkpoint.kinds import kind_of
from ssd_infer.checkpoint.load import Loaded
from ssd_infer.config.checks import Checks
from ssd_infer.engine.generation_rules import refuse_rules
from ssd_infer.engine.model_view import evaluating
from ssd_infer.engine.stats import Stats
from ssd_infer.engine.streaming import streaming
from ssd_infer.engine.values import number, shown, unboxed, whole
from ssd_infer.errors import ConfigError, Problem
from ssd_infer.families.speech.audio import Audio, from_array, read_audio
from ssd_infer.families.speech.encoding import batches
from ssd_infer.families.speech.fast import fastest
from ssd_infer.families.speech.result import ROUTES, RowResult
from ssd_infer.families.speech.segments import LONGEST_SECONDS, Segment, segments
from ssd_infer.strategies.ctc_draft.ctc_params import CTCDraftParams, canonical, check_name, parse
from ssd_infer.strategies.ctc_draft.recognise import confidences, recognise
from ssd_infer.strategies.ctc_draft.saved_thresholds import thresholds_of

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
    """Parameters of the draft, every `auto` resolved."""


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
    plainly; `ctc_draft`, `ctc_draft:lossless` and the other names of `ssd_infer.strategies.ctc_draft.ctc_params` draft.

    Raises AudioError for audio that cannot be recognised, ConfigError for bad arguments.
    """
    checks = Checks()
    problem = _model_problem(model)
    if problem is not None:
        checks.problems.append(problem)
    module = model.model if isinstance(model, Loaded) else model
    refuse_rules(module, "model", {}, do_sample=False, problems=checks.problems)
    draft, draft_params = _draft(draft, draft_params, checks)
    size = _size(batch_size, checks)
    seconds = _seconds(segment_seconds, checks)
    hertz = _hertz(sampling_rate, checks)
    items = _items(audio, hertz is None, checks)
    checks.finish()
    loaded = _loaded(model)
    name = None if draft is None else canonical(draft)
    params = _params(loaded, name, draft_params)
    rate = int(loaded.processor.sampling_rate)
    recordings = [
        read_audio(item, rate) if isinstance(item, str | Path) else from_array(item, hertz, rate, label)
        for label, item in items
    ]
    longest = seconds or getattr(module.config, "max_audio_seconds", None) or LONGEST_SECONDS
    parts = [part for owner, item in enumerate(recordings) for part in segments(item, owner, longest)]
    with evaluating(module):
        done = _decode(loaded, parts, name, params, size)
    return _output(loaded, recordings, parts, done, name, params)


def generate(*_: Any, streamer: Any = None, **__: Any) -> NoReturn:
    """Refuse token prompts: a speech model takes audio."""
    remedy = "use ssd_infer.transcribe(model, audio, sampling_rate)"
    with streaming(streamer):
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


def _model_problem(model: Any) -> Problem | None:
    """Return what keeps `model` from transcribing; None for a speech model."""
    module = model.model if isinstance(model, Loaded) else model
    config, rule = getattr(module, "config", None), "must be a speech model for transcribe"
    if config is None:
        return Problem("model", rule, type(model).__name__, "pass ssd_infer.load(DIR)")
    if kind_of(config) != "speech":
        given = getattr(config, "model_type", type(module).__name__)
        return Problem("model", rule, given, "text models decode with ssd_infer.generate")
    return None


def _loaded(model: nn.Module | Loaded) -> Loaded:
    """Return model and processor; a bare model finds its processor where it was loaded from."""
    loaded = model if isinstance(model, Loaded) else Loaded(model, None, "", "speech")
    if loaded.processor is not None:
        return loaded
    from ssd_infer.models.asr_processor import load_processor

    where = loaded_from(loaded.model.config)
    if where is None:
        rule = "must come with its processor"
        raise ConfigError([Problem("model", rule, type(loaded.model).__name__, "pass ssd_infer.load(DIR)")])
    return Loaded(loaded.model, None, str(where), "speech", load_processor(str(where)))


def _items(audio: Any, needs_files: bool, checks: Checks) -> list[tuple[str, Any]]:
    """Return every recording with the name errors give it; arrays need a sampling rate, which files know."""
    plural = isinstance(audio, Sequence) and not isinstance(audio, str | bytes)
    numbers = plural and bool(audio) and number(audio[0]) is not None
    items = list(audio) if plural and not numbers else [audio]
    checks.require(
        bool(items), "audio", "must hold at least one recording", "none", "give a path or an array"
    )
    named = [(f"audio[{index}]" if plural else "audio", item) for index, item in enumerate(items)]
    rule = "must be an array or tensor of samples, a path, or a list of those"
    for name, item in named:
        checks.require(_is_audio(item), name, rule, shown(item), "try audio='speech.wav'")
    if needs_files and not all(isinstance(item, str | Path) for item in items):
        rule = "must be given for arrays"
        checks.fail("sampling_rate", rule, None, "the rate, in Hz, of the samples")
    return named


def _is_audio(item: Any) -> bool:
    """Tell whether `item` may hold samples: their values are looked at when they are read."""
    if isinstance(item, str | Path):
        return True
    shaped = hasattr(item, "__array__") and bool(getattr(item, "shape", ()))
    return shaped or (isinstance(item, Sequence) and not isinstance(item, bytes))


def _hertz(sampling_rate: Any, checks: Checks) -> int | None:
    """Return the sampling rate; its range is told with the recording it belongs to."""
    found = None if sampling_rate is None else whole(sampling_rate)
    if sampling_rate is not None and found is None:
        rule = "must be an integer, in Hz, or None for files"
        checks.fail("sampling_rate", rule, shown(sampling_rate), "try 16000")
        return 0
    return found


def _draft(draft: Any, params: Any, checks: Checks) -> tuple[str | None, dict[str, Any]]:
    """Return the name of the draft and its parameters as given."""
    named = params is None or (isinstance(params, Mapping) and all(isinstance(key, str) for key in params))
    remedy = "give a dict"
    checks.require(named, "draft_params", "must map names of parameters to values", shown(params), remedy)
    if draft is not None:
        check_name(draft, checks)
    elif named and params:
        checks.fail("draft_params", "need a draft", dict(params), "name one with draft=…")
    return draft, {key: unboxed(value) for key, value in dict(params or {}).items()} if named else {}


def _size(batch_size: Any, checks: Checks) -> int:
    """Return how many parts are decoded together."""
    found = whole(batch_size)
    good = found is not None and found >= 1
    checks.require(good, "batch_size", "must be an integer of at least 1", shown(batch_size), "try 8")
    return found or 1


def _seconds(segment_seconds: Any, checks: Checks) -> float | None:
    """Return the longest part, in seconds; None follows the model."""
    if segment_seconds is None:
        return None
    found = number(segment_seconds)
    rule = "must be a number of seconds, at least 0.5, or None"
    good = found is not None and found >= 0.5
    checks.require(good, "segment_seconds", rule, shown(segment_seconds), "None follows the model")
    return found

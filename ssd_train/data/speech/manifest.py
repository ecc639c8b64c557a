"""Recordings listed in a JSONL manifest, as they are or strung together into longer utterances on the fly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ssd_infer.checkpoint.content import files_digest, text_digest
from ssd_infer.config.checks import suggest
from ssd_infer.errors import DataError
from ssd_infer.families.speech.audio import AudioError, read_audio
from ssd_infer.families.speech.utterances import Line, Utterance, read_manifest
from ssd_train.config.schema_speech import ManifestSpeechConfig
from ssd_train.data.sources import content_share
from ssd_train.data.speech.screening import Screen, Tally
from ssd_train.data.speech.sources import SpeechSource, Stream, speech_fingerprint

SPLITS = (None, "train", "dev", "test")


def manifest_source(cfg: ManifestSpeechConfig, seed: int) -> SpeechSource:
    """Return the source of a manifest; raise DataError when it cannot be read or a part of it is empty.

    Lines with `split` "test" are held out as `test`, those of the speaker `leave_out` as `test_speaker`; `dev` is a
    share of the rest by a hash of what tells the lines apart: the text, or the file where clips are strung together.
    """
    lines = read_manifest(cfg.path, "data.path")
    contents = {"data.path": _content(cfg, lines)}
    parts = split_lines(cfg, lines)
    _require_speaker(cfg, lines)
    for name, part in parts.items():
        if not part:
            raise DataError(
                f"data.path: the manifest has no lines for {name} (got {cfg.path!r}); mark lines with "
                '"split": "train", "dev" or "test", or change data.validation_share'
            )
    strings = cfg.join_clips is not None

    def heldout(name: str, number: int) -> Stream:
        def utterances(tally: Tally) -> Iterator[Utterance]:
            clips = read_lines(parts[name], cfg.sampling_rate, tally)
            yield from strung(list(clips), cfg, [seed, number], cfg.heldout_strings) if strings else clips

        return utterances

    return SpeechSource(
        name=cfg.path,
        fingerprint=speech_fingerprint(cfg, contents),
        contents=contents,
        train=lambda tally: read_lines(parts["train"], cfg.sampling_rate, tally),
        heldout={name: heldout(name, number) for number, name in enumerate(parts) if name != "train"},
        compose=(lambda clips, screen, extract: StrungSpeech(clips, cfg, screen, extract, seed))
        if strings
        else None,
    )


def _require_speaker(cfg: ManifestSpeechConfig, lines: Sequence[Line]) -> None:
    speakers = {str(line.more.get("speaker", "")) for line in lines} - {""}
    if cfg.leave_out is not None and cfg.leave_out not in speakers:
        remedy = suggest(cfg.leave_out, speakers)
        raise DataError(
            f"data.leave_out: must be a speaker of the manifest (got {cfg.leave_out!r}); {remedy}"
        )


def split_lines(cfg: ManifestSpeechConfig, lines: Sequence[Line]) -> dict[str, list[Line]]:
    """Return the lines by part: train, dev, test and, where a speaker is left out, test_speaker.

    Raises DataError for a `split` of another name: such lines would be trained on unnoticed.
    """
    parts: dict[str, list[Line]] = {"train": [], "dev": [], "test": []}
    if cfg.leave_out is not None:
        parts["test_speaker"] = []
    for line in lines:
        if (split := line.more.get("split")) not in SPLITS:
            raise DataError(
                f'{cfg.path}, line {line.number}: \'split\' must be "train", "dev" or "test" (got {split!r}); '
                "rename it, or leave it out"
            )
        parts[_part(cfg, line)].append(line)
    if not any(line.more.get("split") == "test" for line in lines):
        parts["test"] = parts["dev"]
    return parts


def _part(cfg: ManifestSpeechConfig, line: Line) -> str:
    if cfg.leave_out is not None and line.more.get("speaker") == cfg.leave_out:
        return "test_speaker"
    if line.more.get("split") in ("test", "dev"):
        return str(line.more["split"])
    key = line.text.lower() if cfg.join_clips is None else line.audio.name
    return "dev" if content_share(key) < cfg.validation_share else "train"


def _content(cfg: ManifestSpeechConfig, lines: Sequence[Line]) -> str:
    """Return a hash of the manifest and of every recording it lists; one that is not there counts as missing."""
    files = dict.fromkeys(line.audio for line in lines)
    audio = files_digest((path for path in files if path.is_file()), "data.path")
    missing = [number for number, path in enumerate(files) if not path.is_file()]
    return text_digest([files_digest([Path(cfg.path)], "data.path"), audio, missing])


def read_lines(lines: Sequence[Line], rate: int, tally: Tally) -> Iterator[Utterance]:
    """Yield the utterances of `lines` at `rate` Hz; count in `tally` those whose audio cannot be used."""
    for line in lines:
        try:
            audio = read_audio(line.audio, rate)
        except AudioError as error:
            tally.seen += 1
            tally.skip("whose audio cannot be used", str(error))
        else:
            yield Utterance(audio.samples, line.text, audio.name, line.more)


@dataclass(frozen=True, slots=True)
class Plan:
    """A string of clips: which ones, and the samples of silence after each."""

    clips: list[int]
    gaps: list[int]


def plan_string(groups: Sequence[NDArray[np.int64]], cfg: ManifestSpeechConfig, key: Sequence[int]) -> Plan:
    """Return a string of clips of one speaker; it follows from `key` alone."""
    assert cfg.join_clips is not None
    rng = np.random.default_rng(list(key))
    group = groups[int(rng.integers(len(groups)))]
    count = int(rng.integers(cfg.join_clips[0], cfg.join_clips[1] + 1))
    shortest, longest = cfg.gap_seconds
    gaps = rng.uniform(shortest, longest, count) * cfg.sampling_rate
    gaps[-1] = 0
    return Plan(rng.choice(group, count).tolist(), gaps.astype(int).tolist())


def by_speaker(clips: Sequence[Utterance]) -> list[NDArray[np.int64]]:
    """Return the numbers of the clips of each speaker, speakers in name order."""
    found: dict[str, list[int]] = {}
    for number, clip in enumerate(clips):
        found.setdefault(str(clip.more.get("speaker", "")), []).append(number)
    return [np.asarray(found[name]) for name in sorted(found)]


def join(clips: Sequence[Utterance], plan: Plan) -> tuple[Tensor, str]:
    """Return samples and text of a string."""
    parts = []
    for clip, gap in zip(plan.clips, plan.gaps, strict=True):
        parts += [clips[clip].samples, torch.zeros(gap)]
    return torch.cat(parts), " ".join(clips[clip].text for clip in plan.clips)


def strung(
    clips: list[Utterance], cfg: ManifestSpeechConfig, seed: list[int], count: int
) -> Iterator[Utterance]:
    """Yield `count` strings of `clips`."""
    groups = by_speaker(clips)
    for number in range(count):
        plan = plan_string(groups, cfg, [*seed, number])
        samples, text = join(clips, plan)
        speaker = clips[plan.clips[0]].more.get("speaker", "")
        yield Utterance(samples, text, f"string {number}", {"speaker": speaker})


class StrungSpeech:
    """Training strings made when they are asked for; number i is always the same string."""

    def __init__(
        self,
        clips: list[Utterance],
        cfg: ManifestSpeechConfig,
        screen: Screen,
        extract: Callable[..., Any],
        seed: int,
    ) -> None:
        """Plan `cfg.strings` strings; nothing is joined yet."""
        groups = by_speaker(clips)
        self.clips, self.extract, self.screen = clips, extract, screen
        self.plans = [plan_string(groups, cfg, [seed, 99, number]) for number in range(cfg.strings)]
        sizes = np.asarray([len(clip.samples) for clip in clips])
        totals = [int(sizes[plan.clips].sum()) + sum(plan.gaps) for plan in self.plans]
        self._frames = 1 + np.asarray(totals, dtype=np.int64) // screen.hop
        self.seconds = sum(totals) / cfg.sampling_rate

    @property
    def frames(self) -> NDArray[np.int64]:
        """Feature frames of each string."""
        return self._frames

    def __len__(self) -> int:
        """Return the number of strings."""
        return len(self.plans)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return `features` and `labels` of one string."""
        samples, text = join(self.clips, self.plans[index])
        return {"features": self.extract(samples), "labels": self.screen.labels(text)}

"""Speech models: every way to draft a transcript; the lossless ones must give the text of plain decoding.

`Case` goes through `ssd_infer.transcribe`, whose drafts are the model's own CTC transcripts; of a model of random
weights few are right, so `Damaged` verifies transcripts that are right but for a few tokens.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

import ssd_infer
from ssd_infer.checkpoint.load import Loaded
from ssd_infer.errors import SSDError
from ssd_infer.families.speech.result import Decoded, RowResult
from ssd_infer.models.asr_processor import ASRFeatureExtractor, CTCASRProcessor, character_tokenizer
from ssd_infer.strategies.ctc_draft import ctc_params as speech_params
from ssd_infer.strategies.ctc_draft.ctc import Draft
from ssd_infer.strategies.ctc_draft.ctc_params import CTCDraftParams
from ssd_infer.strategies.ctc_draft.lossless import verify_exactly
from tests.families.speech.support import MELS, damaged, encode, limits_of, plain, tiny_asr
from tests.fuzz.campaign import Arm
from tests.fuzz.causal import difference
from tests.fuzz.parameters import Range, Scope, parameters
from tests.fuzz.tally import Tally

__all__ = ["Case", "Damaged", "Spec", "show"]
VOCABULARY, RATE = 31, 8000
_LANGUAGE_MODEL = {
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "initializer_range": 0.5,
}


def _some(*values: Any) -> Range:
    return lambda _: st.sampled_from(values)


RANGES: dict[str, Range] = {
    "theta_ctc": _some(None, -1.0, 0.5, 5.0, 100.0),
    "theta_lm": _some(0.0, 0.01, 0.3, 2.0),
    "entropy_agg": _some(*speech_params.AGGREGATES),
    "entropy_frames": _some(*speech_params.FRAMES),
    "fallback": _some("prefix", "restart"),
    "accept": _some("relaxed", "greedy"),
    "resync": _some("match", "shift", "none"),
    "draft_max_tokens": lambda _: st.none() | st.integers(1, 12),
    "max_verify_rounds": lambda _: st.integers(1, 6),
    "temperature_ctc": _some(0.5, 1.0, 2.0),
}


@dataclass(frozen=True, slots=True)
class Spec:
    """A model; `causal` has a language model for its decoder."""

    seed: int = 0
    causal: bool = False


@dataclass(frozen=True, slots=True)
class Case:
    """One call of `transcribe`."""

    model: Spec
    draft: str
    params: dict[str, Any]
    waves: tuple[int, ...]
    """Numbers of recordings: noise of a tenth of a second to two; every seventh falls silent."""
    batch_size: int = 8
    segment_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Damaged:
    """One batch whose drafts are plain decoding's output with a few tokens changed, verified exactly."""

    model: Spec
    params: dict[str, Any]
    frames: tuple[int, ...]
    seeds: tuple[int, ...]
    limit: int | None = None


@functools.lru_cache(maxsize=32)
def loaded_of(spec: Spec) -> Loaded:
    """Build a model with its processor."""
    changes: dict[str, Any] = {}
    if spec.causal:
        changes = {"decoder_type": "causal_lm", "language_model": dict(_LANGUAGE_MODEL)}
    model = tiny_asr(spec.seed, VOCABULARY, eos=1.0, **changes)
    processor = CTCASRProcessor(
        ASRFeatureExtractor(feature_size=MELS, sampling_rate=RATE), character_tokenizer()
    )
    return Loaded(model, None, "", "speech", processor)


def wave_of(index: int) -> torch.Tensor:
    """Return recording number `index`."""
    chance = torch.Generator().manual_seed(index)
    length = int(torch.randint(RATE // 10, 2 * RATE, (1,), generator=chance))
    wave = 0.1 * torch.randn(length, generator=chance)
    if index % 7 == 6:
        wave[length // 2 :] = 0.0
    return wave


@functools.lru_cache(maxsize=8192)
def text_of(spec: Spec, wave: int, segment_seconds: float | None) -> str:
    """Return what plain decoding of one recording alone gives."""
    out = ssd_infer.transcribe(loaded_of(spec), wave_of(wave), RATE, segment_seconds=segment_seconds)
    return out.texts[0]


@st.composite
def specs(draw: DrawFn, variants: range) -> Spec:
    """Draw a model."""
    return Spec(draw(st.sampled_from(variants)), draw(st.booleans()))


@st.composite
def cases(draw: DrawFn, name: str, variants: range) -> Case:
    """Draw a call with draft `name`."""
    model = draw(specs(variants))
    waves = tuple(draw(st.lists(st.integers(0, 23), min_size=1, max_size=6)))
    params = draw(parameters(CTCDraftParams, Scope(2), RANGES))
    params |= {key: value for key, value in speech_params.VARIANTS.get(name, {}).items() if key in params}
    segment = draw(st.sampled_from((None, None, 0.5, 1.0)))
    return Case(model, name, params, waves, draw(st.integers(1, 6)), segment)


@st.composite
def damages(draw: DrawFn, variants: range) -> Damaged:
    """Draw a batch of damaged transcripts."""
    frames = tuple(draw(st.lists(st.integers(20, 200), min_size=1, max_size=6)))
    seeds = tuple(draw(st.integers(0, 999)) for _ in frames)
    limit = draw(st.none() | st.integers(1, 12))
    params = draw(parameters(CTCDraftParams, Scope(2), RANGES)) | {"accept": "greedy"}
    return Damaged(draw(specs(variants)), params, frames, seeds, limit)


def check(case: Case, tally: Tally) -> None:
    """Transcribe one case and compare lossless drafts with plain decoding; count what it did."""
    wanted = [text_of(case.model, wave, case.segment_seconds) for wave in case.waves]
    try:
        out = ssd_infer.transcribe(
            loaded_of(case.model),
            [wave_of(wave) for wave in case.waves],
            RATE,
            draft=case.draft,
            draft_params=case.params,
            batch_size=case.batch_size,
            segment_seconds=case.segment_seconds,
        )
    except SSDError as refusal:
        tally.refuse(refusal)
        return
    total = out.stats.total
    tally.decodings += 1
    tally.rows += len(out.texts)
    tally.could += any(wanted)
    tally.drafted += total.drafted > 0
    tally.rounds += total.rounds
    tally.accepted += total.accepted
    verifies = case.draft in speech_params.VARIANTS and case.draft != "ctc_draft:ctc_only"
    if verifies and out.draft_params["accept"] == "greedy":
        assert out.texts == wanted, f"transcribed {out.texts}, plain {wanted}"


@torch.inference_mode()
def check_damaged(case: Damaged, tally: Tally) -> None:
    """Verify one batch of damaged transcripts and compare with plain decoding of each row alone."""
    model = loaded_of(case.model).model
    encoded = encode(model, case.frames)
    wanted = [plain(model, encoded.select([row]), case.limit)[0] for row in range(len(case.frames))]
    whole = plain(model, encoded)
    drafts = [damaged(text, seed, VOCABULARY) for text, seed in zip(whole, case.seeds, strict=True)]
    out = Decoded([RowResult() for _ in drafts])
    params = speech_params.parse("ctc_draft:lossless", case.params, VOCABULARY)
    verify_exactly(
        model.decoder, encoded, _shortened(drafts, params), limits_of(encoded, case.limit), params, out
    )
    tally.decodings += 1
    tally.rows += len(drafts)
    tally.tokens += sum(len(row.tokens) for row in out.rows)
    tally.could += any(draft.tokens for draft in drafts)
    tally.drafted += any(row.stats.drafted for row in out.rows)
    tally.rounds += sum(row.stats.rounds for row in out.rows)
    tally.accepted += sum(row.stats.accepted for row in out.rows)
    found = [row.tokens for row in out.rows]
    assert found == wanted, difference(found, wanted)


def _shortened(drafts: list[Draft], params: CTCDraftParams) -> list[Draft]:
    """Return the drafts no longer than parameters let them be."""
    most = params.draft_max_tokens
    return [Draft(draft.tokens[:most], draft.frames[:most], draft.entropy) for draft in drafts]


_CHECKS: dict[type[Any], Callable[[Any, Tally], None]] = {Case: check, Damaged: check_damaged}


def show(case: Case | Damaged) -> None:
    """Check one case by itself and say that it passed."""
    _CHECKS[type(case)](case, Tally())
    print("no difference")


def arm(name: str) -> Arm:
    """Return the arm of a draft for speech; those that verify nothing need not have drafted."""
    judged = speech_params.VARIANTS.get(name, {}).get("accept") == "greedy"

    def drawn(variants: range) -> SearchStrategy[Case]:
        return cases(name, variants)

    return Arm(f"speech {name}", drawn, check, share=0.2, judged=judged)


def arms() -> list[Arm]:
    """Return an arm for every draft for speech, and one for damaged transcripts."""
    return [
        Arm("speech damaged", damages, check_damaged, share=0.5),
        *(arm(name) for name in speech_params.NAMES),
    ]

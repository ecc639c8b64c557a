"""Choose the gate thresholds of a checkpoint on a dev set: the fastest setting whose word error rate is allowed.

Everything any threshold could need is computed once an utterance: CTC text and entropy, the decoder's likelihoods of
the draft, and greedy continuations from every prefix some threshold would keep. A grid of thresholds is then a table
look-up, and its speed a sum of measured costs. Thresholds do not transfer between vocabularies or checkpoints.

A dev set that both heads read nearly without error makes every threshold look free. So copies of it in ever louder
noise join it until there are errors to choose by; if there still are too few, only settings that cannot change the
text may win.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from ssd_infer.families.speech.encoding import batches, encode
from ssd_infer.families.speech.greedy import Row, Work, finish, step
from ssd_infer.families.speech.result import Timer
from ssd_infer.families.speech.scoring import Edits, total, words
from ssd_infer.families.speech.utterances import Utterance
from ssd_infer.strategies.ctc_draft.ctc import Draft
from ssd_infer.strategies.ctc_draft.ctc_params import CTCDraftParams
from ssd_infer.strategies.ctc_draft.decode import decode, draft_of, token_limits
from ssd_infer.strategies.ctc_draft.gates import likelihoods

PAPER_INCREASE = 0.14
"""Relative WER increase of the paper's fast setting (6.56 against 5.75): arXiv 2603.11243, table 1."""
OFF = 2.0
THETAS_LM = (0.0, 0.001, 0.003, 0.01, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, OFF)
"""Gate 2 from accepting everything to rejecting everything without a pass."""
MOST_THETAS_CTC = 40
CERTAIN = 0.5
"""A token with at least this probability is the decoder's own choice: gate 2 at this θ_LM alone changes no text."""
FEWEST_ERRORS = 20
"""Word errors of both heads below which the dev set cannot tell a careful setting from a careless one."""
NOISE_DB = (20.0, 15.0, 10.0, 5.0)
"""Signal-to-noise ratios of the dev set's noisy copies, in the order in which they are added."""
BATCH = 8


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds measured at batch size 1: features and encoder, CTC draft, verify pass, decoder step; per utterance."""

    encode: float
    ctc: float
    verify: float
    step: float


@dataclass(slots=True)
class Case:
    """What one dev utterance gives under any thresholds."""

    draft: Draft
    likelihoods: list[float]
    """q_j of each draft token, then of EOS unless the limit ends it."""
    ctc: Edits
    plain: Edits
    steps: int
    """Decoder steps of plain decoding."""
    resumed: dict[int, tuple[Edits, int]] = field(default_factory=dict)
    """Kept prefix → word edits of the fallback's text, and the decoder steps it took after the verify pass."""


@dataclass(frozen=True, slots=True)
class Point:
    """One pair of thresholds on the dev set; `theta_ctc` None is gate 1 off."""

    theta_ctc: float | None
    theta_lm: float
    wer: float
    speedup: float
    """Predicted from the measured costs at batch size 1."""
    routes: dict[str, float]

    @property
    def harmless(self) -> bool:
        """Tell whether the setting cannot change the text of plain decoding."""
        return self.theta_ctc is None and self.theta_lm >= CERTAIN


@dataclass(slots=True)
class Calibration:
    """The whole curve, and what it was measured against."""

    points: list[Point]
    plain_wer: float
    ctc_wer: float
    utterances: int
    costs: Costs
    words: int = 0
    """Reference words of the dev set, noisy copies included."""
    noise_db: tuple[float, ...] = ()
    """Signal-to-noise ratios of the noisy copies among the utterances."""

    def fastest(self, increase: float) -> Point | None:
        """Return the fastest point whose WER is at most (1 + `increase`) times that of plain decoding.

        With fewer than `FEWEST_ERRORS` errors to choose by, only among points that cannot change the text.
        """
        limit = self.plain_wer * (1 + increase) + 1e-12
        sure = self.uncertain is None
        allowed = [point for point in self.points if point.wer <= limit and (sure or point.harmless)]
        return max(allowed, key=lambda point: (point.speedup, -point.wer), default=None)

    def most_accurate(self) -> Point:
        """Return the point of lowest WER, the fastest of several."""
        return min(self.points, key=lambda point: (point.wer, -point.speedup))

    @property
    def undertrained(self) -> str | None:
        """Say that the decoder is worse than the head it should correct, by two standard errors; or None."""
        lost = (self.plain_wer - self.ctc_wer) * self.words
        if lost <= 2 * math.sqrt(self.errors):
            return None
        return (
            "the verifier is undertrained: on the dev set the decoder alone has a WER of "
            f"{100 * self.plain_wer:.1f} %, the CTC head alone {100 * self.ctc_wer:.1f} %; "
            "verification can lower quality, train the decoder longer "
            "or decode with ctc_draft:ctc_only"
        )

    @property
    def errors(self) -> float:
        """Return the word errors of both heads, all there is to choose thresholds by."""
        return (self.plain_wer + self.ctc_wer) * self.words

    @property
    def uncertain(self) -> str | None:
        """Say that the dev set holds too few errors to tell thresholds apart, or None."""
        if self.errors >= FEWEST_ERRORS:
            return None
        return (
            f"the dev set holds only {self.errors:.0f} word errors of both heads together, noisy copies included: no "
            "setting of the two gates that could change the text was chosen by it; take a larger dev set"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for the report."""
        return {
            "points": [asdict(point) for point in self.points],
            "plain_wer": self.plain_wer,
            "ctc_wer": self.ctc_wer,
            "utterances": self.utterances,
            "costs": asdict(self.costs),
            "noise_db": list(self.noise_db),
        }


def calibrate(model: Any, processor: Any, dev: Sequence[Utterance], costs: Costs) -> Calibration:
    """Return the curve of WER and predicted speed over both thresholds, measured on `dev` and, if need be, in noise."""
    cases = _examined(model, processor, dev)
    added: list[float] = []
    while _errors(cases) < FEWEST_ERRORS and len(added) < len(NOISE_DB):
        added.append(NOISE_DB[len(added)])
        cases += _examined(model, processor, noisy(dev, added[-1]))
    thetas: list[float | None] = [
        None,
        *_candidates([case.draft.entropy for case in cases if case.draft.tokens]),
    ]
    points = [_point(cases, first, second, costs) for second in THETAS_LM for first in thetas]
    spoken, drafted = _totals(cases)
    return Calibration(
        points,
        spoken.rate,
        drafted.rate,
        len(cases),
        costs,
        spoken.units,
        tuple(added),
    )


def noisy(utterances: Sequence[Utterance], snr_db: float) -> list[Utterance]:
    """Return `utterances` in white noise `snr_db` below their mean power; the same noise every time."""
    generator = torch.Generator().manual_seed(round(snr_db))
    found = []
    for item in utterances:
        scale = item.samples.pow(2).mean().sqrt() * 10 ** (-snr_db / 20)
        noise = torch.randn(item.samples.shape, generator=generator, dtype=item.samples.dtype)
        found.append(replace(item, samples=item.samples + scale * noise))
    return found


def _totals(cases: Sequence[Case]) -> tuple[Edits, Edits]:
    """Return the word edits of plain decoding and of the CTC head."""
    return total([case.plain for case in cases]), total([case.ctc for case in cases])


def _errors(cases: Sequence[Case]) -> int:
    return sum(found.edits for found in _totals(cases))


def _examined(model: Any, processor: Any, utterances: Sequence[Utterance]) -> list[Case]:
    return [case for batch in _batched(utterances) for case in _cases(model, processor, batch)]


def _batched(dev: Sequence[Utterance]) -> list[list[Utterance]]:
    lengths = [len(item.samples) for item in dev]
    return [[dev[index] for index in batch] for batch in batches(lengths, BATCH)]


@torch.inference_mode()
def _cases(model: Any, processor: Any, batch: list[Utterance]) -> list[Case]:
    """Compute everything thresholds could ask for of one batch."""
    decoder, config = model.decoder, model.config
    encoded = encode(model, processor, [item.samples for item in batch], Timer())
    drafts, limits = draft_of(model, encoded, CTCDraftParams()), token_limits(encoded)
    tokens = [item.tokens[:limit] for item, limit in zip(drafts, limits, strict=True)]
    prompt = list(decoder.prompt)
    logits = step(decoder, decoder.start(encoded), [prompt + row for row in tokens], Work())
    table = likelihoods(logits, tokens, len(prompt) - 1, config.eos_token_id).tolist()
    texts = [item.text for item in batch]
    plain = [row.tokens for row in decode(model, encoded, None).rows]
    ctc = words(texts, [_text(processor, row) for row in tokens])
    spoken = words(texts, [_text(processor, row) for row in plain])
    cases = [
        Case(
            drafts[i],
            table[i][: len(tokens[i]) + (len(tokens[i]) < limits[i])],
            ctc[i],
            spoken[i],
            _steps(plain[i], limits[i], 0),
        )
        for i in range(len(batch))
    ]
    _resume(model, processor, encoded, cases, tokens, limits, texts)
    return cases


def _resume(
    model: Any,
    processor: Any,
    encoded: Any,
    cases: list[Case],
    tokens: list[list[int]],
    limits: list[int],
    texts: list[str],
) -> None:
    """Decode greedily after every prefix that some θ_LM would keep."""
    decoder = model.decoder
    jobs = []
    for index, case in enumerate(cases):
        found = {_cut(case, theta) for theta in THETAS_LM if theta <= 1}
        jobs += [(index, kept) for kept in sorted(kept for kept in found if kept is not None)]
    for start in range(0, len(jobs), 2 * BATCH):
        part = jobs[start : start + 2 * BATCH]
        rows = [
            Row(place, limits[index], tokens[index][:kept], list(decoder.prompt) + tokens[index][:kept])
            for place, (index, kept) in enumerate(part)
        ]
        going = [row for row in rows if len(row.tokens) < row.limit]
        if going:
            state = decoder.start(encoded.select([part[row.index][0] for row in going]))
            finish(decoder, state, going, Work())
        for row, (index, kept) in zip(rows, part, strict=True):
            edits = words([texts[index]], [_text(processor, row.tokens)])[0]
            cases[index].resumed[kept] = (edits, max(0, _steps(row.tokens, row.limit, kept) - 1))


def _steps(tokens: list[int], limit: int, kept: int) -> int:
    """Return the decoder passes that emit `tokens` after `kept` of them, EOS included unless the limit ended it."""
    return len(tokens) - kept + (len(tokens) < limit)


def _cut(case: Case, theta: float) -> int | None:
    """Return the first place gate 2 doubts at θ_LM = `theta`, or None."""
    return next((place for place, q in enumerate(case.likelihoods) if q < theta), None)


def _candidates(entropies: list[float]) -> list[float]:
    """Return thresholds between neighbouring entropies, at most `MOST_THETAS_CTC`, evenly spread over the drafts."""
    ordered = sorted(set(entropies))
    middles = [(low + high) / 2 for low, high in itertools.pairwise(ordered)]
    every = max(1, math.ceil(len(middles) / MOST_THETAS_CTC))
    return [*middles[::every], *([ordered[-1] * 1.05] if ordered else [])]


def _point(cases: list[Case], theta_ctc: float | None, theta_lm: float, costs: Costs) -> Point:
    """Look one pair of thresholds up."""
    edits, seconds, plain = [], 0.0, 0.0
    routes = {"gate": 0, "verify": 0, "fallback": 0}
    for case in cases:
        seconds += costs.encode + costs.ctc
        plain += costs.encode + case.steps * costs.step
        if theta_ctc is not None and case.draft.tokens and case.draft.entropy <= theta_ctc:
            route, found = "gate", case.ctc
        elif theta_lm > 1:
            route, found = "fallback", case.plain
            seconds += case.steps * costs.step
        else:
            cut = _cut(case, theta_lm)
            route = "verify" if cut is None else "fallback"
            found, steps = (case.ctc, 0) if cut is None else case.resumed[cut]
            seconds += costs.verify + steps * costs.step
        routes[route] += 1
        edits.append(found)
    shares = {name: count / len(cases) for name, count in routes.items()}
    return Point(theta_ctc, theta_lm, total(edits).rate, plain / seconds, shares)


def _text(processor: Any, tokens: list[int]) -> str:
    text: str = processor.decode(tokens) if tokens else ""
    return text

"""How a speech checkpoint is evaluated: every decoder on held-out speech, one batch size after another."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ssd_infer.config.evaluation import EvalSettings
from ssd_infer.evaluation.bench import Say
from ssd_infer.evaluation.carried import carry, show
from ssd_infer.evaluation.contenders import Contender
from ssd_infer.evaluation.kind import EvalKind, Row
from ssd_infer.evaluation.losslessness import LosslessResult
from ssd_infer.evaluation.measure import Measurements, Record
from ssd_infer.evaluation.setting import Section, Setting, again
from ssd_infer.evaluation.speech.batches import exact_in_batches
from ssd_infer.evaluation.speech.speech_board import SpeechBoard
from ssd_infer.evaluation.speech.speech_units import SpeechUnit, cut_units, recognising, said
from ssd_infer.evaluation.speech.trial import Trial, open_trial, prompts_sha256, strategy
from ssd_infer.evaluation.strategies import Absent, Candidates
from ssd_infer.evaluation.stream import both
from ssd_infer.evaluation.studies import Findings
from ssd_infer.evaluation.summary import Scoreboard, scoreboard
from ssd_infer.evaluation.verdict import verdict
from ssd_infer.report.write import writing
from ssd_infer.strategies.registry import basics, infos
from ssd_infer.strategies.speech_strategy import Heard, SpeechDraft
from ssd_infer.strategies.study import Sampling

PLAIN = "ar_greedy"
BATCHES = (1, 8)
FIRST_SHARE, LAST_SHARE = 0.55, 0.95
"""Shares of the time limit after which batch size 1, and everything, must be done."""
TAKES_TEXT = "it drafts for models that take text, and this checkpoint takes audio"
NO_GENERATE = (
    "the model class has no transformers generate: its plain decoding is this toolkit's loop with a "
    "key/value cache"
)


class SpeechKind(EvalKind):
    """Parameters are chosen on the dev set, once; the choice is saved beside the checkpoint."""

    verb = "recognising"
    counts_drafts = (
        False  # a transcript that is taken as it stands was never verified, and is no plain decoding
    )
    context: Trial

    def __init__(self, trial: Trial) -> None:
        """Evaluate what was opened."""
        self.context = trial
        self.chosen: Any = None
        self.drafts: list[SpeechDraft] = []
        self.exact: dict[str, LosslessResult] = {}
        """What decodings beside the timed ones found, by draft."""

    @classmethod
    def open(cls, settings: EvalSettings, say: Say) -> SpeechKind:
        """Load the checkpoint and its held-out speech."""
        return cls(open_trial(settings, say))

    @property
    def max_new_tokens(self) -> int:
        """Return 0: a transcript ends by itself."""
        return 0

    def quality(self) -> Row:
        """Return where quality is told: every row has its own."""
        return {"exits": [], "reason": "error rates of every decoder stand under Speech"}

    def study(self) -> list[Findings]:
        """Choose parameters on the dev set."""
        trial, settings = self.context, self.context.settings
        trial.say("choosing thresholds on the dev set")
        self.chosen = strategy().calibrate(trial.model, trial.processor, trial.dev)
        self.drafts = strategy().drafts(settings.draft, settings.draft_params, trial.vocab_size, self.chosen)
        return []

    def settings(self) -> list[Setting]:
        """Return batch size 1, and the one asked for or `BATCHES[1]`."""
        trial = self.context
        asked = trial.settings.batch_size
        found = []
        for number, (size, share) in enumerate(
            zip((1, asked if asked > 1 else BATCHES[1]), (FIRST_SHARE, LAST_SHARE), strict=True)
        ):
            suffix, units = f":b{size}" if number else "", cut_units(trial.sets, size)
            deadline = trial.budget.deadline(share)
            found.append(Setting(number, f"batch size {size}", suffix, units, size, deadline, deadline))
        return found

    def candidates(self, setting: Setting) -> Candidates:
        """Return plain decoding twice, the drafts asked for, and the references."""
        plain = Contender(PLAIN + setting.suffix, "baseline", self._decode(None))
        drafting = [self._contender(draft, setting.suffix) for draft in self.drafts]
        return Candidates([plain, again(plain, setting.suffix), *drafting])

    def board(self, setting: Setting, contenders: list[Contender], found: Measurements) -> Scoreboard | None:
        """Return what all figures are divided by; None when no plain decoding ran."""
        trial = self.context

        def make(found: Measurements, sampling: Sampling, plain: str, _loop: str, seed: int) -> SpeechBoard:
            return SpeechBoard(
                found,
                sampling,
                plain,
                plain,
                seed,
                units={unit.index: unit for unit in setting.units if isinstance(unit, SpeechUnit)},
                processor=trial.processor,
                sampling_rate=int(trial.processor.sampling_rate),
                size=setting.batch,
            )

        return scoreboard(found, contenders, setting.sampling, trial.settings.seed, make)

    def judge(self, section: Section) -> None:
        """Compare every output with plain decoding's; at the first batch size in ragged batches and budgets too."""
        board, first = section.board, not section.setting.number
        if not isinstance(board, SpeechBoard):
            return
        running = {item.name: item for item in section.contenders if section.found.of(item.name)}
        if first:
            promised = [draft for draft in self.drafts if draft.claimed and draft.name in running]
            self.exact = exact_in_batches(self.context, promised)
        for draft in self.drafts:
            name = draft.name + section.setting.suffix
            if name not in running:
                continue
            section.verdicts[name] = self._verdict(draft, board.equality(name))
            if draft.role == "strategy":
                doubt = board.figures(name).doubt
                heard = Heard(draft, self.chosen, self.context.vocab_size, first, doubt)
                facts = strategy().facts(heard)
                section.more[name] = facts | {"speech": board.speech(name) | facts.get("speech", {})}

    def absent(self, present: set[str]) -> list[Absent]:
        """Return strategies for text, and what this run did not ask for."""
        mine = f"not measured: this run asked for draft={self.context.settings.draft} only"
        known = infos()
        return [
            Absent(name, "not_applicable", mine if known[name].kind == "speech" else TAKES_TEXT)
            for name in basics()
            if name not in present
        ]

    def more_peers(self) -> list[Row]:
        """Return transformers' own decoding, which there is none of."""
        row = {"name": "transformers_generate", "tokens_per_second": None, "speedup": None}
        return [row | {"verdict": "not_run", "extra": {"reason": NO_GENERATE}}]

    def show(self, baselines: Sequence[Row], peers: Sequence[Row], strategies: Sequence[Row]) -> list[str]:
        """Put tables and plots into all rows: plain decoding and references are tabled beside the drafts."""
        for row in (*baselines, *peers):
            show(row, strategy().tables(row), strategy().plots(row))
        return carry(strategies)

    def verdict(self, baselines: Sequence[Row], peers: Sequence[Row], strategies: Sequence[Row]) -> Row:
        """Conclude: only what promises unchanged output can win, at the first batch size; the rest is remarked on."""
        notes = [*self.context.notes, *strategy().notes(self.chosen)]
        promised = [row for row in strategies if row["lossless"]["claimed"] and ":b" not in row["name"]]
        found = verdict(promised, [], notes)
        plain = baselines[0]["extra"].get("speech", {}).get("wer")
        remarks = strategy().remarks(strategies)
        if remarks and plain is not None:
            found["extra"]["also"] = f"{'; '.join(remarks)} (plain: {100 * plain:.2f} %)."
        return found

    def protocol(self, sections: Sequence[Section]) -> Row:
        """Return sets, batch sizes, and how the clock was read."""
        trial, rate = self.context, int(self.context.processor.sampling_rate)
        return {
            "tasks": [
                {
                    "name": name,
                    "samples": len(items),
                    "prompt_tokens": 0,
                    "new_tokens": max(
                        len(trial.processor.tokenizer(item.text)["input_ids"]) for item in items
                    ),
                    "extra": {
                        "prompts_sha256": prompts_sha256(items),
                        "seconds": sum(len(item.samples) for item in items) / rate,
                    },
                }
                for name, items in trial.sets.items()
            ],
            "batch_size": sections[0].setting.batch,
            "sampling": {"temperatures": [0.0]},
            "repeats": trial.settings.repeats,
            "timer": "time.perf_counter around the whole recognition, features and encoder included on both sides, "
            "device synchronised; contenders interleaved per batch in rotating order, in blocks with an order of their "
            "own; speedup compares times for the same audio",
            "extra": {
                "batch_sizes": [section.setting.batch for section in sections],
                "rounds": [
                    {"done": section.found.rounds_done, "planned": section.found.rounds_planned}
                    for section in sections
                ],
                "dev_utterances": len(trial.dev),
                "sampling_rate": rate,
                "seconds": round(trial.budget.spent, 1),
            },
        }

    def sample(self, section: Section, name: str, record: Record) -> Row:
        """Return who decoded which utterances into what, by which routes, in which time."""
        decoded, cpu = said(record)
        unit = next(unit for unit in section.setting.units if unit.index == record.unit)
        assert isinstance(unit, SpeechUnit)
        return {
            "name": name.removesuffix(section.setting.suffix),
            "batch_size": section.setting.batch,
            "task": record.task,
            "unit": record.unit,
            "repeat": record.repeat,
            "places": unit.places,
            "tokens": record.decoded.tokens,
            "routes": [row.route for row in decoded.rows],
            "seconds": record.decoded.seconds,
            "cpu_seconds": cpu,
        }

    def remember(self) -> None:
        """Save the choice of parameters beside the checkpoint, for every later `auto`."""
        folder = Path(self.context.settings.checkpoint)
        with writing("checkpoint", folder):
            strategy().remember(self.context.loaded.model, folder, self.chosen)

    def _decode(self, draft: SpeechDraft | None) -> Any:
        return recognising(strategy(), self.context.model, self.context.processor, draft)

    def _contender(self, draft: SpeechDraft, suffix: str) -> Contender:
        return Contender(
            draft.name + suffix,
            draft.role,
            self._decode(draft),
            draft=draft.method,
            params=dict(draft.shown),
            claimed=draft.claimed,
            extra_bytes=0,
        )

    def _verdict(self, draft: SpeechDraft, same: LosslessResult) -> LosslessResult:
        """Join what timed and other decodings found; a draft that changes the text says so."""
        found = both(same, self.exact[draft.name]) if draft.name in self.exact else same
        if draft.claimed or draft.role == "peer":
            return found
        return dataclasses.replace(found, detail=f"lossy by design; {found.detail}")

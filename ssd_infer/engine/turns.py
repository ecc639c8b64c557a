"""Decode a conversation as one stream: text is appended to every row between stretches of decoding.

Cache, drafter and everything the drafter has learned go on from one turn to the next.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ssd_infer.drafts.base import Drafter, DraftParams
from ssd_infer.engine.clock import Clock
from ssd_infer.engine.loop import Decoding
from ssd_infer.engine.sampling import Sampler
from ssd_infer.engine.session import open_session
from ssd_infer.engine.stats import Stats
from ssd_infer.engine.stopping import StopRule
from ssd_infer.engine.target import Target


@dataclass(slots=True)
class TurnDecoding(Decoding):
    """The decode loop with further turns: `turns[t][row]` is appended once every row has `per_turn` new tokens more."""

    turns: list[list[list[int]]] = field(default_factory=list)
    per_turn: int = 0
    starts: list[list[int]] = field(default_factory=list)
    """Tokens each row had emitted when a turn was appended; a draft may carry a turn past `per_turn`."""

    def _round(self, clock: Clock) -> None:
        if self.turns and self._turn_ends():
            with clock.phase("prefill"):
                self._append(self.turns.pop(0))
        if self.session.rows:
            Decoding._round(self, clock)

    def _turn_ends(self) -> bool:
        due = self.per_turn * (len(self.starts) + 1)
        return all(self.stats.rows[row.index].emitted >= due for row in self.session.rows)

    def _append(self, texts: list[list[int]]) -> None:
        """Feed the pending token and the turn's text of every row, and emit the token that follows."""
        rows = self.session.rows
        self.starts.append([self.stats.rows[row.index].emitted for row in rows])
        blocks = [[row.tokens[-1], *texts[row.index]] for row in rows]
        for row in rows:
            row.tokens.extend(texts[row.index])
            row.limit += len(texts[row.index])
        self._commit(self._feed(blocks), None, None)


@dataclass(frozen=True, slots=True)
class Conversation:
    """A decoded stream: every row's tokens after its first turn's text, and the tokens emitted before later turns."""

    tokens: list[list[int]]
    starts: list[list[int]]
    stats: Stats


def decode_turns(
    target: Target,
    turns: list[list[list[int]]],
    strategy: type[Drafter] | None,
    params: DraftParams | None,
    per_turn: int,
    sampler: Sampler,
) -> Conversation:
    """Decode `per_turn` new tokens after each of `turns[t][row]`.

    No row stops early: tokens that end a text do not end the stream. `params=None` decodes plainly.
    """
    prompts, later = turns[0], turns[1:]
    text = sum(max(map(len, texts)) for texts in later)
    most = 0 if strategy is None or params is None else strategy.max_draft(params)
    new_tokens = per_turn * len(turns)
    session = open_session(target, prompts, new_tokens + text + len(turns) * (most + 1), most, sampler)
    for row in session.rows:
        row.limit = new_tokens
    drafter = None if strategy is None or params is None else strategy(session, params)
    loop = TurnDecoding if drafter is None else drafter.loop(TurnDecoding)
    stats = Stats.empty(len(prompts))
    decoding: TurnDecoding = loop(
        session, drafter, StopRule(), stats, None, [list(texts) for texts in later], per_turn
    )
    tokens = decoding.run()
    starts = [[marks[row] for marks in decoding.starts] for row in range(len(prompts))]
    return Conversation(tokens, starts, stats)

"""Decode a conversation as one stream: text is appended between stretches of decoding.

Cache, drafter and everything the drafter has learned go on from one turn to the next.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ssd_infer.engine.clock import Clock
from ssd_infer.engine.drafter import DraftParams
from ssd_infer.engine.loop import Decoding, Planner
from ssd_infer.engine.sampling import Sampler
from ssd_infer.engine.session import Row, open_session
from ssd_infer.engine.stats import Stats
from ssd_infer.engine.stopping import StopRule
from ssd_infer.engine.target import Target


class Unending(StopRule):
    """Cut a row at its limit as ever, but let it go on: more text will come."""

    def extend(self, row: Row, block: list[int]) -> tuple[int, bool]:
        """Append `block` as far as the limit allows; the row has not ended."""
        return StopRule.extend(self, row, block)[0], False


@dataclass(slots=True)
class TurnDecoding(Decoding):
    """The decode loop of one row with further turns: the text of `turns` is appended after `per_turn` tokens each."""

    turns: list[list[int]] = field(default_factory=list)
    per_turn: int = 0

    def round(self, clock: Clock) -> None:
        """Append the next turn where the last one is complete, then run a round."""
        if self.turns and self.session.rows[0].remaining == 0:
            with clock.phase("prefill"):
                self._append(self.turns.pop(0))
        if self.session.rows:
            Decoding.round(self, clock)

    def _append(self, text: list[int]) -> None:
        """Feed the last token and the turn's text, and emit the token that follows.

        Drafts accepted past the end of the turn were cut off: the committed length steps back over them.
        """
        session, row = self.session, self.session.rows[0]
        block = [row.tokens[-1], *text]
        session.lengths = [len(row.tokens) - 1]
        row.tokens.extend(text)
        row.limit += len(text) + self.per_turn
        if not self.turns:
            self.stop = StopRule()
        self._commit(self._feed([block]))


def decode_turns(
    target: Target,
    turns: list[list[int]],
    strategy: Planner | None,
    params: DraftParams | None,
    per_turn: int,
    sampler: Sampler,
) -> tuple[list[int], Stats]:
    """Decode exactly `per_turn` new tokens after each text of `turns`; return those after the first.

    A token that ends a text does not end the stream. One row has nothing to be out of step with: a plan's own loop is
    not used. `params=None` decodes plainly.
    """
    later = [list(text) for text in turns[1:]]
    most = 0 if strategy is None or params is None else strategy.max_draft(params)
    room = per_turn * len(turns) + sum(map(len, later))
    session = open_session(target, [turns[0]], room, most, sampler)
    session.rows[0].limit = per_turn
    plan = None if strategy is None or params is None else strategy.plan(session, params)
    session.layers = None if plan is None else plan.layers
    stats = Stats.empty(1)
    stop = Unending() if later else StopRule()
    drafter = None if plan is None else plan.drafter
    return TurnDecoding(session, drafter, stop, stats, None, later, per_turn).run()[0], stats

"""Phase balancing (SparseSpec's unified scheduler): every pass drafts for some rows and verifies others.

In lock-step all rows draft, then all verify, so passes alternate between light and heavy attention. Here rows run
through their rounds out of step, chosen so that every pass carries about the same share of verification.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ssd_infer.engine.acceptance import accept
from ssd_infer.engine.clock import Clock
from ssd_infer.engine.kernels.layers import attention_view
from ssd_infer.engine.laws import Law
from ssd_infer.engine.loop import Decoding
from ssd_infer.engine.session import Row
from ssd_infer.strategies.sparse_attention.mixed import MixedCache, MixedSet, MixedWindow, Segment
from ssd_infer.strategies.sparse_attention.sparse_draft import SparseDraft


def first_phases(rows: int, gamma: int) -> list[int]:
    """Return the phase each of `rows` starts at: the one after the emptiest, so that no row starts at its verify.

    hist[γ-1] = ∞; start = (argmin hist + 1) mod (γ+1), the histogram being that of one pass earlier. A row at phase b
    has γ - b drafts in its first round.
    """
    counts = [0.0] * (gamma + 1)
    counts[gamma - 1] = float("inf")
    starts = []
    for _ in range(rows):
        emptiest = counts.index(min(counts))
        counts[emptiest] += 1
        starts.append((emptiest + 1) % (gamma + 1))
    return starts


class Balanced(Decoding):
    """The decode loop with rows out of step; law and output are those of `Decoding`."""

    def round(self, clock: Clock) -> None:
        """Run one mixed pass: rows that have all their drafts verify, the others draft one more token."""
        if not hasattr(self, "chosen"):
            self._open()
        session, target = self.session, self.session.target
        with clock.phase("mixed"):
            segments = [self._segment(place, row) for place, row in enumerate(session.rows)]
            ids = torch.tensor([[token for part in segments for token in part.ids]], device=target.device)
            window = MixedWindow(session.geometry, segments)
            hidden = target.embed_at(ids, window, self.cache)
            logits = target.logits(target.run(hidden, window, self.cache, layers=self.layers))[0]
            drafting = [part for part in segments if not part.verifies]
            verifying = [part for part in segments if part.verifies]
            if drafting:
                self._extend(drafting, logits)
            if verifying:
                self._commit_verified(verifying, logits)
        self.stats.total.forwards["target" if verifying else "draft"] += 1

    def _open(self) -> None:
        """Set up every row's first round; without a cold start all rows have slots to read already."""
        drafter = self.drafter
        assert isinstance(drafter, SparseDraft)
        rows = len(self.session.rows)
        self.selector, self.gamma, self.reads = drafter.selector, drafter.gamma, drafter.reads
        self.pace = drafter.pace
        self.chosen = MixedSet(rows, self.gamma, drafter.most_slots())
        heard = self.selector if self.selector.listens else None
        drafter.beside = self.chosen
        self.cache = MixedCache(self.session.cache, self.chosen, heard)
        self.layers = attention_view(self.session.target, self.cache)
        self.goals = [self.gamma - phase for phase in first_phases(rows, self.gamma)]
        self.drafts: list[list[int]] = [[] for _ in range(rows)]
        self.laws: list[list[Tensor]] = [[] for _ in range(rows)]
        self.sparse = [False] * rows
        if self.selector.ready:
            self._gather(list(range(rows)))

    def _segment(self, place: int, row: Row) -> Segment:
        """Return what row `place` does in the next pass."""
        drafts, start = self.drafts[place], self.session.lengths[place]
        if len(drafts) < min(self.goals[place], row.remaining - 1):
            last = drafts[-1] if drafts else row.tokens[-1]
            ahead = len(drafts)
            return Segment(place, start + ahead, [last], ahead, sparse=self.sparse[place])
        return Segment(place, start, [row.tokens[-1], *drafts], verifies=True)

    def _extend(self, drafting: list[Segment], logits: Tensor) -> None:
        """Choose the next draft of each drafting row."""
        sampler = self.session.sampler
        for part in drafting:
            width = self.chosen.widths[part.row] + part.ahead if part.sparse else part.start
            self.reads.draft += width
        own = logits[[part.first for part in drafting]]
        rows = [self.session.rows[part.row] for part in drafting]
        steps = [part.ahead for part in drafting]
        sampler.begin([row.index for row in rows], [row.emitted for row in rows], steps)
        if self.session.rules is not None:
            own = self.session.rules.step(rows, own, [self.drafts[part.row] for part in drafting])
        probs = None if sampler.greedy else sampler.probs(own)
        tokens = own.argmax(dim=-1) if probs is None else sampler.draw(probs)
        for at, (part, token) in enumerate(zip(drafting, tokens.tolist(), strict=True)):
            self.drafts[part.row].append(token)
            if probs is not None:
                self.laws[part.row].append(probs[at])

    def _commit_verified(self, verifying: list[Segment], logits: Tensor) -> None:
        """Accept what each verifying row drafted, commit it, and choose what its next round reads."""
        session = self.session
        counts = [len(part.ids) - 1 for part in verifying]
        most, device = max(counts), logits.device
        index = [
            [part.first + min(i, count) for i in range(most + 1)]
            for part, count in zip(verifying, counts, strict=True)
        ]
        drafts = [part.ids[1:] + [0] * (most - count) for part, count in zip(verifying, counts, strict=True)]
        rows = [session.rows[part.row] for part in verifying]
        session.sampler.begin([row.index for row in rows], [row.emitted for row in rows])
        scores = logits[torch.tensor(index, device=device)]
        if session.rules is not None:
            scores = session.rules.target(rows, scores, [part.ids[1:] for part in verifying])
        accepted, following = accept(
            scores,
            torch.tensor(drafts, dtype=torch.long, device=device).view(len(drafts), most),
            torch.tensor(counts, device=device),
            self._laws(verifying, most, logits.shape[-1]),
            session.sampler,
        )
        lengths, ended = list(session.lengths), set()
        before = [lengths[part.row] for part in verifying]
        self.reads.verified(before, counts, accepted.tolist())
        sparse = [at for at, part in enumerate(verifying) if self.sparse[part.row]]
        self.pace.learn([int(accepted[at]) for at in sparse], [counts[at] for at in sparse])
        for part, count, took, token in zip(
            verifying, counts, accepted.tolist(), following.tolist(), strict=True
        ):
            lengths[part.row] += took + 1
            self.selector.fresh[part.row] = took + 1
            if self._append(part, count, took, token):
                ended.add(part.row)
        session.lengths = lengths
        verified = [part.row for part in verifying if part.row not in ended]
        if ended:
            verified = self._drop(ended, verified)
        if verified:
            self._gather(verified)

    def _laws(self, verifying: list[Segment], most: int, vocabulary: int) -> Law | None:
        """Return the distributions `(R, most, V)` the drafts were drawn from; None when greedy or without drafts."""
        if self.session.sampler.greedy or most == 0:
            return None
        table = torch.zeros((len(verifying), most, vocabulary), device=self.session.target.device)
        for at, part in enumerate(verifying):
            for step, law in enumerate(self.laws[part.row]):
                table[at, step] = law
        return Law(table)

    def _append(self, part: Segment, count: int, took: int, token: int) -> bool:
        """Append a verified block to its row, count and emit it; return whether the row ended."""
        row = self.session.rows[part.row]
        added, ended = self.stop.extend(row, [*part.ids[1 : took + 1], token])
        self.stats.rows[row.index].count(min(count, added) if ended else count, min(took, added), added)
        if self.emit is not None:
            self.emit(row.index, row.tokens[len(row.tokens) - added :])
        self.drafts[part.row], self.laws[part.row], self.goals[part.row] = [], [], self.gamma
        return ended

    def _drop(self, ended: set[int], verified: list[int]) -> list[int]:
        """Drop ended rows; return the new places of `verified`."""
        session = self.session
        going = [place for place in range(len(session.rows)) if place not in ended]
        if not going:
            session.rows = []
            return []
        self.selector.keep_rows(going)
        self.chosen.keep_rows(going)
        session.keep_rows(going)
        for name in ("drafts", "laws", "goals", "sparse"):
            setattr(self, name, [getattr(self, name)[place] for place in going])
        return [going.index(place) for place in verified]

    def _gather(self, rows: list[int]) -> None:
        """Choose and copy what `rows` read in their next drafts."""
        choice = self.selector.choose(self.session.lengths, rows)
        self.chosen.gather(self.session.cache, rows, choice.slots, choice.hidden)
        for row in rows:
            self.sparse[row] = True

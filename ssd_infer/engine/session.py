"""The state of one decoding: rows, their committed lengths, the shared cache, the pending tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from ssd_infer.engine.cache import RowCache, as_rows
from ssd_infer.engine.laws import Law, Scored
from ssd_infer.engine.rules import Rules
from ssd_infer.engine.sampling import Sampler
from ssd_infer.engine.target import Target
from ssd_infer.engine.tree import Tree, TreeDraft
from ssd_infer.engine.tree_window import TreeWindow
from ssd_infer.engine.window import Geometry, Window


@dataclass(slots=True)
class Row:
    """One sequence being decoded; `tokens` is prompt plus output, and its last token is the pending one."""

    index: int
    tokens: list[int]
    prompt_length: int
    limit: int

    @property
    def emitted(self) -> int:
        """Tokens produced so far."""
        return len(self.tokens) - self.prompt_length

    @property
    def remaining(self) -> int:
        """Tokens that may still be produced."""
        return self.limit - self.emitted


@dataclass(slots=True)
class Proposal:
    """What a drafter suggests for every active row.

    `tokens` `(B, γ)`; `counts` `(B,)` when rows drafted fewer than γ (None: all γ); `law` `(B, γ)` what each
    token was drawn from (None: deterministic). A drafter that already ran the target's own first `resume_layer`
    layers on [pending, drafts…] hands over their output in `hidden` `(B, γ or γ+1, d)`; the verify pass continues from
    there instead of running those layers again. Layers named in `capture` (all > `resume_layer`) have the hidden states
    after them, at every verified position, handed back in the feedback. Tokens marked in `unverified` `(B, γ)` are
    emitted without being compared; only a strategy that says it is lossy may mark any.

    With a `tree`, `tokens` `(B, N)` are its nodes 1 to N; `counts`, `law` and `unverified` are then not used, and
    `hidden` `(B, N+1, d)` is of the root and all nodes.
    """

    tokens: Tensor
    counts: Tensor | None = None
    law: Law | None = None
    hidden: Tensor | None = None
    resume_layer: int = 0
    forwards: int = 0
    capture: tuple[int, ...] = ()
    unverified: Tensor | None = None
    tree: TreeDraft | None = None

    @property
    def width(self) -> int:
        """γ, the drafted tokens of the longest row; N, the nodes of a tree."""
        return int(self.tokens.shape[1])

    def drafts(self) -> list[list[int]]:
        """Return what each row really drafted; waits for the device."""
        rows: list[list[int]] = self.tokens.tolist()
        if self.counts is None:
            return rows
        return [row[:count] for row, count in zip(rows, self.counts.tolist(), strict=True)]


@dataclass(slots=True)
class Feedback:
    """What verification said: accepted counts a row (host side), and the target's logits `(B, γ+1, V)`.

    Where rules of generation hold, `logits` are the scores they make of the target's. In a tree logits and states are
    those of the root and each node, and `path` holds the accepted nodes of each row, `accepted` many.

    `states[l]` `(B, γ+1, d)` are the hidden states after l layers, for each l the proposal asked to capture.
    """

    proposal: Proposal
    counts: list[int]
    accepted: list[int]
    logits: Tensor
    states: dict[int, Tensor] = field(default_factory=dict)
    path: list[list[int]] | None = None


@dataclass(slots=True)
class Session:
    """Everything a drafter may read; it writes only to the cache, and only past the committed lengths."""

    target: Target
    sampler: Sampler
    geometry: Geometry
    cache: RowCache
    rows: list[Row]
    pending: Tensor
    """Last emitted token of each active row `(B,)`: the only committed token whose keys are not stored yet."""
    lengths: list[int] = field(default_factory=list)
    """Committed slots of each active row."""
    layers: Sequence[nn.Module] | None = None
    """A view of the target's layers, equal to them in every output, that prefill and verify passes run; None: as is."""
    rules: Rules | None = None
    """What changes scores before a token is chosen; None where nothing does."""

    def run(self, hidden: Tensor, window: Window, first: int = 0, last: int | None = None) -> Tensor:
        """Run layers `first..last-1` of the target on `hidden` `(B, T, d)`, in the shared cache."""
        return self.target.run(hidden, window, self.cache, first, last, self.layers)

    def begin_round(self) -> None:
        """Commit what is decoded, and let the active rows draw new numbers.

        A round begins at what each row has emitted, which only grows.
        """
        self.cache.commit(self.lengths)
        self.sampler.begin([row.index for row in self.rows], [row.emitted for row in self.rows])

    def pretend(self, lengths: list[int]) -> None:
        """Stand at `lengths` of each row without having run a token, to measure passes there."""
        self.lengths = lengths
        self.cache.pretend(lengths)

    def window(self, width: int, offset: int = 0) -> Window:
        """Open a window of `width` positions, `offset` past the committed length of each row."""
        starts = self.lengths if offset == 0 else [length + offset for length in self.lengths]
        return Window(self.geometry, starts, width)

    def tree_window(self, tree: Tree, first: int, width: int) -> TreeWindow:
        """Open a window of nodes `first` to `first + width - 1` of a tree whose root is the pending token."""
        return TreeWindow(self.geometry, self.lengths, tree, first, width)

    def window_at(self, starts: list[int], width: int = 1) -> Window:
        """Open a window of `width` positions at slots of the caller's choice, one a row."""
        return Window(self.geometry, starts, width)

    def target_scores(self, logits: Tensor, proposal: Proposal | None = None) -> Tensor:
        """Return what tokens are chosen by: the target's logits `(…, B, γ+1, V)`, or what rules make of them."""
        if self.rules is None:
            return logits
        if proposal is not None and proposal.tree is not None:
            tokens: list[list[int]] = proposal.tokens.tolist()
            return self.rules.nodes(self.rows, logits, tokens, proposal.tree.parents())
        return self.rules.target(self.rows, logits, [] if proposal is None else proposal.drafts())

    def block_scores(self, scored: Scored, proposal: Proposal) -> Scored:
        """Return what a draft checks `proposal` by: its scores `(B, γ+1, K)`, or what rules make of them."""
        if self.rules is None:
            return scored
        return self.ruled(scored, partial(self.rules.draft, self.rows, drafts=proposal.drafts()))

    def draft_scores(self, scored: Scored, drafts: Sequence[Tensor]) -> Scored:
        """Return what a draft chooses by after its `drafts` `(B,)`: scores `(B, K)`, or what rules make of them."""
        if self.rules is None:
            return scored
        table = torch.stack(list(drafts), dim=1).tolist() if drafts else [[]] * len(self.rows)
        return self.step_scores(scored, table)

    def step_scores(self, scored: Scored, drafts: Sequence[Sequence[int]]) -> Scored:
        """Return what a draft chooses by after each row's `drafts`: scores `(B, K)`, or what rules make of them."""
        if self.rules is None:
            return scored
        return self.ruled(scored, partial(self.rules.step, self.rows, drafts=drafts))

    def level_scores(self, scored: Scored, paths: Sequence[Sequence[int]]) -> Scored:
        """Return what a draft chooses by after `paths`, the drafts before each of E nodes of every row in turn.

        Scores are `(B, E, K)`, or what rules make of them.
        """
        if self.rules is None:
            return scored
        rules = self.rules
        every = [row for row in self.rows for _ in range(len(paths) // len(self.rows))]

        def rule(logits: Tensor) -> Tensor:
            return rules.step(every, logits.flatten(0, 1), paths).view(logits.shape)

        return self.ruled(scored, rule)

    def ruled(self, scored: Scored, rule: Callable[[Tensor], Tensor]) -> Scored:
        """Return what `rule` makes of `scored`, where rules of generation hold; it knows scores of all tokens only."""
        return scored if self.rules is None else scored.through(rule, self.target.vocab_size)

    def committed_scores(self, logits: Tensor, starts: list[int]) -> Tensor:
        """Return logits `(…, B, T, V)` after committed slots from `starts[b]` on, or what rules make of them."""
        return logits if self.rules is None else self.rules.committed(self.rows, logits, starts)

    def empty(self) -> Proposal:
        """Return a proposal that drafts nothing."""
        return Proposal(self.pending.new_empty((len(self.rows), 0)))

    def keep_rows(self, kept: list[int]) -> None:
        """Drop finished rows: only the rows at positions `kept` go on."""
        index = as_rows(kept, self.pending.device)
        self.cache.keep_rows(index)
        self.pending = self.pending[index]
        self.rows = [self.rows[position] for position in kept]
        self.lengths = [self.lengths[position] for position in kept]


def open_session(
    target: Target,
    prompts: list[list[int]],
    max_new_tokens: int,
    max_draft: int,
    sampler: Sampler,
    rules: Rules | None = None,
) -> Session:
    """Allocate the cache for `prompts` and return a session whose rows have not been prefilled."""
    capacity = max(map(len, prompts)) + max_new_tokens + max_draft + 1
    rows = [Row(index, list(prompt), len(prompt), max_new_tokens) for index, prompt in enumerate(prompts)]
    pending = torch.zeros(len(rows), dtype=torch.long, device=target.device)
    cache = target.new_cache(len(rows), capacity)
    lengths = [0] * len(rows)
    geometry = target.geometry(capacity, prompts=[len(prompt) for prompt in prompts])
    return Session(target, sampler, geometry, cache, rows, pending, lengths, rules=rules)

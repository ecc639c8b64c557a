"""States of layers that remember by recurrence: convolutions and linear attention, which hold no slot a token.

A key that a draft left behind is masked and overwritten; a state that has seen a rejected token cannot forget it. So a
layer keeps, of every row, the state at the row's committed length and the inputs its mixer got since. A pass that
begins before the last token it has seen goes back: the committed state runs over the inputs that were accepted, through
the mixer alone. Nothing is run again where a pass begins where the last one ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

States = dict[tuple[str, int], Tensor]
"""(kind, number) → state `(B, …)` of a mixer, as it keeps one or several of a kind."""


class MixerStates:
    """What a mixer of transformers takes for its cache during one call: the states of one layer's rows.

    It stands in for `transformers.Cache`, of which mixers call what is here and nothing else.
    """

    def __init__(self, states: States) -> None:
        """Begin with copies of `states`: mixers write to what they get."""
        self.states = {key: state.clone() for key, state in states.items()}

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """Return the last inputs of a convolution `(B, C, K)`; None before the first token."""
        del layer_idx
        return self.states.get(("conv", state_idx))

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """Return the recurrent state `(B, …)`; None before the first token."""
        del layer_idx
        return self.states.get(("recurrent", state_idx))

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int = 0) -> bool:
        """Tell whether a token was seen."""
        del layer_idx, state_idx
        return bool(self.states)

    def is_recording_past(self, layer_idx: int) -> bool:
        """Tell that no state but the last is kept here."""
        del layer_idx
        return False

    def update_conv_state(
        self,
        conv_states: Tensor,
        layer_idx: int,
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
        **_: Any,
    ) -> Tensor:
        """Take new inputs `(B, C, T)`; return them behind those before, or behind zeros up to the kernel's width."""
        del layer_idx
        before = self.states.get(("conv", state_idx))
        if before is None:
            width = conv_states.shape[-1] if conv_kernel_size is None else conv_kernel_size
            missing = max(0, width - conv_states.shape[-1])
            seen = nn.functional.pad(conv_states, (missing, 0))
        else:
            width = before.shape[-1]
            seen = torch.cat([before, conv_states], dim=-1)
        self.states["conv", state_idx] = seen[..., -width:].clone()
        return seen

    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **_: Any
    ) -> Tensor:
        """Take the state after the last token."""
        del layer_idx
        self.states["recurrent", state_idx] = recurrent_states
        return recurrent_states


Run = Callable[[Tensor, MixerStates], Tensor]
"""Run a mixer on inputs `(B, T, d)` from states, which it leaves as they are after the last token."""


@dataclass(slots=True)
class LayerStates:
    """One recurrent layer: its states now and at the committed length, and the inputs between them."""

    batch: int
    committed: States = field(default_factory=dict)
    now: States = field(default_factory=dict)
    lengths: list[int] = field(default_factory=list)
    """Tokens of each row that `committed` has seen."""
    seen: list[int] = field(default_factory=list)
    """Tokens of each row that `now` has seen."""
    inputs: Tensor | None = None
    """`(B, n, d)` of the tokens after the committed ones, as far as any row has them."""
    marked: list[int] | None = None
    """Lengths that were committed since the last pass."""

    def begin(self, lengths: list[int]) -> None:
        """Forget everything and stand at `lengths`, in the state before any token."""
        self.committed, self.now, self.inputs, self.marked = {}, {}, None, None
        self.lengths, self.seen = list(lengths), list(lengths)

    def run(self, starts: Sequence[int], hidden: Tensor, mixer: Run) -> Tensor:
        """Run `mixer` on `hidden` `(B, T, d)` from slot `starts[b]` of each row; return what it returns."""
        if self.marked is not None:
            self._go_to(self.marked, mixer)
            self._commit(self.marked)
            self.marked = None
        self._go_to(starts, mixer)
        states = MixerStates(self.now)
        out = mixer(hidden, states)
        self.now = states.states
        self._remember(starts, hidden)
        self.seen = [start + hidden.shape[1] for start in starts]
        return out

    def keep_rows(self, rows: Tensor) -> None:
        """Drop every row not named in `rows` `(B',)`."""
        order = rows.tolist()
        self.batch = len(order)
        self.committed = {key: state[rows] for key, state in self.committed.items()}
        self.now = {key: state[rows] for key, state in self.now.items()}
        self.lengths = [self.lengths[row] for row in order]
        self.seen = [self.seen[row] for row in order]
        self.inputs = None if self.inputs is None else self.inputs[rows]
        if self.marked is not None:
            self.marked = [self.marked[row] for row in order]

    def branch(self) -> LayerStates:
        """Return states equal to these that go on by themselves; tensors are shared, since none is written to."""
        made = replace(self, committed=dict(self.committed), now=dict(self.now))
        made.lengths, made.seen = list(self.lengths), list(self.seen)
        made.marked = None if self.marked is None else list(self.marked)
        return made

    def alone(self, length: int) -> States:
        """Return the states `(1, …)` of the first row after `length` tokens, which must be all it has seen."""
        if self.seen[0] != length:
            raise RuntimeError(f"a recurrent layer has seen {self.seen[0]} tokens, not {length}")
        return {key: state[:1].clone() for key, state in self.now.items()}

    def stand(self, rows: Sequence[States], lengths: Sequence[int]) -> None:
        """Stand after `lengths[b]` tokens of each row b, all committed, in its states `(1, …)`."""
        self.begin(list(lengths))
        self.now = {key: torch.cat([row[key] for row in rows]) for key in rows[0]}
        self.committed = dict(self.now)

    def nbytes(self) -> int:
        """Return the bytes held."""
        held = [*self.committed.values(), *self.now.values(), *([] if self.inputs is None else [self.inputs])]
        return sum(state.numel() * state.element_size() for state in held)

    def _go_to(self, places: Sequence[int], mixer: Run) -> None:
        """Bring `now` to the state after `places[b]` tokens of each row b, running accepted inputs again if needed."""
        late = [row for row, (seen, place) in enumerate(zip(self.seen, places, strict=True)) if seen != place]
        for count in sorted({places[row] - self.lengths[row] for row in late}):
            rows = [row for row in late if places[row] - self.lengths[row] == count]
            if count < 0 or any(places[row] > self.seen[row] for row in rows):
                raise RuntimeError(
                    "a pass begins where a recurrent layer has seen no token, or before those committed"
                )
            self._rerun(rows, count, mixer)
        self.seen = list(places)

    def _rerun(self, rows: list[int], count: int, mixer: Run) -> None:
        """Set `now` of `rows` to the committed states after `count` more tokens."""
        index = torch.tensor(rows, device=next(iter(self.now.values())).device)
        if not self.committed and count == 0:
            self.now = {} if len(rows) == self.batch else _blank(self.now, index)
            return
        states = {key: state[index] for key, state in self.committed.items()}
        if count:
            assert self.inputs is not None
            again = MixerStates(states)
            mixer(self.inputs[index, :count], again)
            states = again.states
        for key, state in states.items():
            if len(rows) == self.batch:
                self.now[key] = state
            else:
                self.now[key] = self.now[key].index_copy(0, index, state)

    def _commit(self, lengths: list[int]) -> None:
        """Take `now` as committed, after `lengths[b]` tokens of each row."""
        self.committed, self.lengths, self.inputs = dict(self.now), list(lengths), None

    def _remember(self, starts: Sequence[int], hidden: Tensor) -> None:
        """Keep the inputs of a pass behind those of the committed length."""
        first = [start - length for start, length in zip(starts, self.lengths, strict=True)]
        if not any(first):
            self.inputs = hidden
            return
        assert self.inputs is not None
        if min(first) == max(first):
            self.inputs = torch.cat([self.inputs[:, : first[0]], hidden], dim=1)
            return
        width = max(first) + hidden.shape[1]
        kept = hidden.new_zeros((hidden.shape[0], max(width, self.inputs.shape[1]), hidden.shape[2]))
        kept[:, : self.inputs.shape[1]] = self.inputs
        for row, place in enumerate(first):
            kept[row, place : place + hidden.shape[1]] = hidden[row]
        self.inputs = kept


def _blank(states: States, rows: Tensor) -> States:
    """Return `states` with those of `rows` as before the first token: zeros, as mixers begin with."""
    return {key: state.index_fill(0, rows, 0) for key, state in states.items()}

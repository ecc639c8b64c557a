"""Layers that remember by recurrence, decoded in blocks: their mixers keep the states of every row in the cache."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import torch
import transformers
from torch import Tensor, nn

from ssd_infer.engine.cache import RowCache
from ssd_infer.engine.model_view import cache_keyword
from ssd_infer.engine.recurrent_states import LayerStates, MixerStates


class RecurrentCache(RowCache):
    """A row cache for models whose layers keep recurrent states beside keys and values, or in their place."""

    def __init__(self, batch: int, capacity: int, num_layers: int) -> None:
        """Reserve slots as a `RowCache` does; states are kept from the first pass of their layer on."""
        super().__init__(batch, capacity, num_layers)
        self._states: dict[int, LayerStates] = {}
        self._begins = [0] * batch

    def states(self, layer: int) -> LayerStates:
        """Return what layer `layer` remembers of the rows."""
        found = self._states.get(layer)
        if found is None:
            found = self._states[layer] = LayerStates(self.batch)
            found.begin(self._begins)
        return found

    def pretend(self, lengths: list[int]) -> None:
        """Let rows begin at `lengths`, in the state before any token, for measurements."""
        super().pretend(lengths)
        self._begins = list(lengths)
        for states in self._states.values():
            states.begin(lengths)

    def tensors(self) -> list[Tensor]:
        """Return the states `(B, …)` of all layers, in the order of layers and kinds."""
        return [
            state for layer in sorted(self._states) for _, state in sorted(self._states[layer].now.items())
        ]

    def commit(self, lengths: list[int]) -> None:
        """Promise that no pass begins before `lengths[b]` of each row b any more."""
        super().commit(lengths)
        for states in self._states.values():
            states.marked = list(lengths)

    def keep_rows(self, rows: Tensor) -> None:
        """Drop every row not named in `rows` `(B',)`."""
        super().keep_rows(rows)
        self._begins = [self._begins[row] for row in rows.tolist()]
        for states in self._states.values():
            states.keep_rows(rows)

    def share(self, other: RowCache) -> None:
        """Use the very slots of `other`, and go on from states equal to its own, which stay as they are."""
        super().share(other)
        if isinstance(other, RecurrentCache):
            self._begins = list(other._begins)
            self._states = {layer: states.branch() for layer, states in other._states.items()}

    def taken(self, length: int) -> dict[str, Any]:
        """Return what the first row keeps of its first `length` tokens, which are all it has seen."""
        states = {layer: own.alone(length) for layer, own in self._states.items()}
        return super().taken(length) | {"states": states}

    def lay(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Begin with what other caches have `taken` of one row each, in this order."""
        super().lay(rows)
        self._begins = [row["length"] for row in rows]
        for layer in rows[0]["states"]:
            self.states(layer).stand([row["states"][layer] for row in rows], self._begins)

    def nbytes(self) -> int:
        """Return the bytes held by all layers, their states and inputs included."""
        return super().nbytes() + sum(states.nbytes() for states in self._states.values())


class RecurrentMixer(nn.Module):
    """A layer's own mixer, whose states are those of the rows of a `RecurrentCache` at the window it is aimed at."""

    def __init__(self, mixer: nn.Module, cache_name: str) -> None:
        """Share `mixer`, which takes its cache as `cache_name`."""
        super().__init__()
        self.mixer, self.cache_name = mixer, cache_name
        self.layer_idx = int(cast(Any, mixer).layer_idx)
        self.one_by_one = _bounded_steps(mixer)

    def forward(self, hidden_states: Tensor, **given: Any) -> Tensor:
        """Run on hidden states `(B, T, d)`; padding is no concern of it, since rows go back to what is theirs."""
        cache: RecurrentCache = given.pop(self.cache_name)
        given.pop("attention_mask", None)

        def run(hidden: Tensor, states: MixerStates) -> Tensor:
            parts = hidden.split(1, dim=1) if self.one_by_one and states.has_previous_state() else [hidden]
            more = {self.cache_name: states, "attention_mask": None, **given}
            return torch.cat([self.mixer(part, **more) for part in parts], dim=1)

        return cache.states(self.layer_idx).run(cache.window.starts, hidden_states, run)


def _bounded_steps(mixer: nn.Module) -> bool:
    """Tell whether a mixer bounds its time steps, which transformers does for several tokens and not for a single one.

    Tokens after the prompt go through it one by one then, as in `generate`; that reads its weights once a token.
    """
    limit = getattr(mixer, "time_step_limit", None)
    return limit is not None and (limit[0] > 0 or limit[1] < math.inf)


def outdated_reason(layers: Iterable[nn.Module], name: str | None) -> str | None:
    """Return why the mixers `name` of `layers` cannot go on from a state over several tokens; None where they can.

    Older releases of transformers take a state for single tokens only; their mixers call the cache by another name.
    """
    mixers = [layer._modules.get(name) for layer in layers] if name is not None else []
    found = [part for part in mixers if part is not None and is_recurrent(part)]
    if all(cache_keyword(part.forward) == "cache" for part in found):
        return None
    return (
        f"its recurrent layers go on from a state by single tokens only in transformers {transformers.__version__}; "
        "version 5.24 takes several at once"
    )


def with_states(layer: nn.Module, name: str | None) -> nn.Module:
    """Return a shallow copy of `layer` whose mixer, its module `name`, keeps states by row; itself if it has none.

    What stands under that name may be attention, or an MLP: layers of some families call all three alike.
    """
    mixer = None if name is None else layer._modules.get(name)
    if name is None or mixer is None or not is_recurrent(mixer):
        return layer
    view = copy.copy(layer)
    view._modules = layer._modules | {name: RecurrentMixer(mixer, cache_keyword(mixer.forward))}
    return view


def is_recurrent(part: nn.Module) -> bool:
    """Tell whether a module is a mixer that remembers by recurrence: all of them begin with a short convolution."""
    return any(isinstance(child, nn.Conv1d) for child in part.children()) and hasattr(part, "layer_idx")

"""Random parameters of any strategy, read from the fields of its dataclass.

A field gets a value of its type; where a type allows much that is refused or slow, `RANGES` says what to draw by the
field's name. A strategy that is registered later, or from outside, needs nothing here.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy


@dataclasses.dataclass(frozen=True, slots=True)
class Scope:
    """Sizes of the model the parameters are for."""

    layers: int
    top_k: int = 1
    """Experts a token is routed to."""


Range = Callable[[Scope], SearchStrategy[Any]]


def _some(*values: Any) -> Range:
    return lambda _: st.sampled_from(values)


def _whole(low: int, high: int) -> Range:
    return lambda _: st.integers(low, high)


RANGES: dict[str, Range] = {
    "gamma": lambda _: st.one_of(st.integers(1, 5), st.integers(1, 12)),
    "exit_layer": lambda scope: st.integers(1, scope.layers - 1),
    "exits": lambda scope: st.none() | st.lists(st.integers(1, scope.layers - 1), min_size=1, unique=True),
    "shares": _some(None, [0.6, 0.2, 0.1], [0.3, 0.3, 0.3], [0.9]),
    "tree": lambda _: st.one_of(st.just(1), st.integers(2, 5), st.integers(2, 16)),
    "head_size": _whole(1, 5),
    "k_draft": lambda scope: st.integers(1, scope.top_k),
    "confidence": _some(0.0, 0.0, 0.3, 0.6, 0.9),
    "copy": _whole(1, 10),
    "max_ngram": _whole(1, 4),
    "min_ngram": _some(1, 1, 2),
    "trust": _whole(0, 3),
    "guard": _some(0.0, 0.0, 0.0, 0.9),
    "ratio": _some(0.1, 0.3, 0.5, 0.8, 1.0),
    "min_budget": _whole(1, 24),
    "omega": _some(0.5, 0.9, 1.0),
    "prompt": _whole(1, 32),
    "tau_accept": _some(0.0, 0.5, 0.9, 2.0),
    "eps": _some(0.02, 0.5),
    "max_window": _whole(1, 8),
    "window": _whole(8, 16),
    "max_trials": _whole(1, 8),
    "tolerance": _whole(1, 8),
    # What follows would make most streams draft nothing: a search gets all the time there is, and any gain is taken.
    "share": _some(1.0),
    "fruitless": _some(1.0),
    "worth": _some(1.0),
    "search_seconds": _some(0.1),
}
ALWAYS = ("share", "fruitless", "worth", "guard", "gamma", "tree")
"""Fields that are drawn even where the strategy has a default."""


def parameters(
    params: type[Any], scope: Scope, ranges: Mapping[str, Range] = RANGES
) -> SearchStrategy[dict[str, Any]]:
    """Return random keyword arguments for the dataclass `params`, always with those whose default is "auto"."""
    hints = typing.get_type_hints(params)
    must, may = {}, {}
    for field in dataclasses.fields(params):
        drawn = ranges[field.name](scope) if field.name in ranges else of_type(hints[field.name], scope)
        if drawn is not None:
            (must if field.default == "auto" or field.name in ALWAYS else may)[field.name] = drawn
    return st.fixed_dictionaries(must, optional=may)


def of_type(hint: Any, scope: Scope) -> SearchStrategy[Any] | None:
    """Return values of a type hint, None where nothing can be drawn but the default; "auto" is never drawn."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        values = [value for value in parts if value != "auto"]
        return st.sampled_from(values) if values else None
    if origin in (typing.Union, types.UnionType):
        drawn = [found for part in parts if (found := of_type(part, scope)) is not None]
        return st.one_of(drawn) if drawn else None
    if origin in (list, tuple):
        return st.lists(st.integers(0, scope.layers - 1), unique=True, max_size=scope.layers)
    return _SCALARS.get(hint)


_SCALARS: dict[Any, SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: st.integers(1, 8),
    float: st.sampled_from([0.0, 0.25, 0.5, 0.75, 0.9, 1.0]),
    type(None): st.none(),
}


def rules(vocabulary: int) -> SearchStrategy[tuple[tuple[str, Any], ...]]:
    """Return random rules of generation, often none, that speak of tokens of a vocabulary."""
    tokens = st.lists(st.integers(3, vocabulary - 1), min_size=1, max_size=vocabulary // 3, unique=True)
    words = st.lists(st.lists(st.integers(3, vocabulary - 1), min_size=1, max_size=3), min_size=1, max_size=6)
    some = st.fixed_dictionaries(
        {},
        optional={
            "repetition_penalty": st.sampled_from([0.7, 1.1, 1.5, 3.0]),
            "encoder_repetition_penalty": st.sampled_from([0.8, 1.5]),
            "no_repeat_ngram_size": st.integers(1, 4),
            "encoder_no_repeat_ngram_size": st.integers(2, 4),
            "bad_words_ids": words,
            "sequence_bias": words.map(lambda found: [[word, 2.0 - len(word)] for word in found]),
            "suppress_tokens": tokens,
            "begin_suppress_tokens": tokens,
            "min_new_tokens": st.integers(1, 12),
            "exponential_decay_length_penalty": st.tuples(st.integers(0, 6), st.sampled_from([1.1, 1.6])),
        },
    )
    none: SearchStrategy[dict[str, Any]] = st.just({})
    return st.one_of(none, none, some).map(lambda found: tuple(found.items()))

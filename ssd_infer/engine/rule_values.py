"""The values of rules that are followed: what a caller or a generation config may say, checked before decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypedDict

from ssd_infer.engine.values import flag, number, plain, shown, unboxed, whole
from ssd_infer.errors import Problem


class GenerationRules(TypedDict, total=False):
    """Rules a call may name; each stands for the generation config's own, and None switches it off."""

    sequence_bias: Mapping[tuple[int, ...], float] | Sequence[Sequence[Any]] | None
    encoder_repetition_penalty: float | None
    repetition_penalty: float | None
    no_repeat_ngram_size: int | None
    encoder_no_repeat_ngram_size: int | None
    bad_words_ids: Sequence[Sequence[int]] | None
    min_length: int | None
    min_new_tokens: int | None
    forced_bos_token_id: int | None
    forced_eos_token_id: int | Sequence[int] | None
    remove_invalid_values: bool | None
    exponential_decay_length_penalty: tuple[int, float] | None
    suppress_tokens: Sequence[int] | None
    begin_suppress_tokens: Sequence[int] | None
    min_p: float | None
    typical_p: float | None
    top_h: float | None
    epsilon_cutoff: float | None
    eta_cutoff: float | None


FOLLOWED = frozenset(GenerationRules.__annotations__)
"""Names of the rules that decoding follows."""
NEEDS_END = ("exponential_decay_length_penalty",)
"""Rules that mean nothing where no token ends a row."""
Read = Callable[[Any], Any]


def _read_above_zero(value: Any) -> float | None:
    found = number(value)
    return found if found is not None and found > 0 else None


def _read_count(value: Any) -> int | None:
    found = whole(value)
    return found if found is not None and found >= 0 else None


def _read_share(value: Any) -> float | None:
    found = number(value)
    return found if found is not None and 0 < found <= 1 else None


def _read_cutoff(value: Any) -> float | None:
    found = number(value)
    return found if found is not None and 0 < found < 1 else None


def _read_token(value: Any) -> int | None:
    return _read_count(value)


def _read_items(value: Any) -> list[Any] | None:
    """Return the items of a list, an array or a tensor; None for anything else."""
    value = unboxed(plain(value))
    many = isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)
    return list(value) if many else None


def _read_ids(value: Any) -> list[int] | None:
    """Return token ids; transformers lets ids that no vocabulary has pass."""
    found = [whole(item) for item in _read_items(value) or [None]]
    return None if None in found else [item for item in found if item is not None]


def _read_tokens(value: Any) -> list[int] | None:
    one = _read_token(value)
    found = [one] if one is not None else _read_ids(value)
    return found if found and min(found) >= 0 else None


def _read_words(value: Any) -> list[list[int]] | None:
    found = [_read_tokens(_read_items(item)) for item in _read_items(value) or [None]]
    return None if None in found else [item for item in found if item is not None]


def _read_bias(value: Any) -> dict[tuple[int, ...], float] | None:
    """Return token sequences and what is added to the score of their last token."""
    pairs = list(value.items()) if isinstance(value, Mapping) else _read_items(value)
    found: dict[tuple[int, ...], float] = {}
    for pair in pairs or [None]:
        parts = _read_items(pair)
        ids = _read_tokens(_read_items(parts[0])) if parts is not None and len(parts) == 2 else None
        bias = number(parts[1]) if parts is not None and ids else None
        if ids is None or bias is None:
            return None
        found[tuple(ids)] = bias
    return found


def _read_decay(value: Any) -> tuple[int, float] | None:
    parts = _read_items(value)
    if parts is None or len(parts) != 2:
        return None
    start, factor = whole(parts[0]), _read_above_zero(parts[1])
    return None if start is None or factor is None else (start, factor)


_PENALTY = (_read_above_zero, "must be a number above 0", "1.0 turns it off")
_SIZE = (_read_count, "must be an integer >= 0", "0 turns it off")
_LISTED = (_read_ids, "must be a list of token ids", "try [5, 6]")
READ: dict[str, tuple[Read, str, str]] = {
    "sequence_bias": (_read_bias, "must map token sequences to numbers", "try [[[5, 6], -10.0]]"),
    "encoder_repetition_penalty": _PENALTY,
    "repetition_penalty": _PENALTY,
    "no_repeat_ngram_size": _SIZE,
    "encoder_no_repeat_ngram_size": _SIZE,
    "bad_words_ids": (
        _read_words,
        "must be a list of token sequences that are not empty",
        "try [[5], [6, 7]]",
    ),
    "min_length": _SIZE,
    "min_new_tokens": _SIZE,
    "forced_bos_token_id": (_read_token, "must be a token id", "None turns it off"),
    "forced_eos_token_id": (_read_tokens, "must be a token id or a list of them", "None turns it off"),
    "remove_invalid_values": (flag, "must be true or false", "None turns it off"),
    "exponential_decay_length_penalty": (
        _read_decay,
        "must be an integer, after how many new tokens it begins, and a factor above 0",
        "try (15, 1.6)",
    ),
    "suppress_tokens": _LISTED,
    "begin_suppress_tokens": _LISTED,
    "min_p": (_read_share, "must be in (0, 1]", "None turns it off"),
    "typical_p": (_read_share, "must be in (0, 1]", "1.0 turns it off"),
    "top_h": (_read_share, "must be in (0, 1]", "None turns it off"),
    "epsilon_cutoff": (_read_cutoff, "must be in (0, 1)", "0.0 turns it off"),
    "eta_cutoff": (_read_cutoff, "must be in (0, 1)", "0.0 turns it off"),
}
"""Rule → how it is read, what it must be, and a remedy."""


def read_value(name: str, key: str, value: Any, problems: list[Problem]) -> Any:
    """Return the value of rule `name` as its processor takes it; None, and a problem under `key`, where it is none."""
    read, rule, remedy = READ[name]
    found = read(value)
    if found is None:
        problems.append(Problem(key, rule, shown(value), remedy))
    return found


def named_tokens(name: str, value: Any) -> list[int]:
    """Return the ids of a rule that must lie in the vocabulary; other rules pass over ids that no model has."""
    if name in ("bad_words_ids", "sequence_bias"):
        return [token for item in value for token in item]
    if name == "forced_eos_token_id":
        return list(value)
    return [value] if name == "forced_bos_token_id" else []

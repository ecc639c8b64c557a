"""How much an output repeats itself: loops flatter every acceptance figure, so each row reports this."""

from __future__ import annotations

from collections.abc import Sequence

LOOP_THRESHOLD = 0.5
"""Below this distinct-3 a report warns: the outputs loop."""


def distinct_n(tokens: Sequence[int], n: int) -> float:
    """Return different n-grams ÷ all n-grams of one output; 1.0 when it is shorter than n (Li et al., 1510.03055)."""
    grams = [tuple(tokens[start : start + n]) for start in range(len(tokens) - n + 1)]
    return len(set(grams)) / len(grams) if grams else 1.0


def longest_repeat(tokens: Sequence[int]) -> int:
    """Return the length of the longest run of tokens that occurs twice (occurrences may overlap)."""
    previous, best = [0] * (len(tokens) + 1), 0
    for end in range(1, len(tokens)):
        current = [0] * (len(tokens) + 1)
        for start in range(end):
            if tokens[start] == tokens[end]:
                current[start + 1] = previous[start] + 1
        best, previous = max(best, *current), current
    return best


def repetition(outputs: Sequence[Sequence[int]]) -> dict[str, float | int]:
    """Return distinct-1, -2, -3 averaged over outputs, and the longest repeat of all; zeros for no output."""
    if not outputs:
        return {"distinct_1": 0.0, "distinct_2": 0.0, "distinct_3": 0.0, "longest_repeat": 0}
    figures: dict[str, float | int] = {
        f"distinct_{n}": sum(distinct_n(output, n) for output in outputs) / len(outputs) for n in (1, 2, 3)
    }
    figures["longest_repeat"] = max(longest_repeat(output) for output in outputs)
    return figures

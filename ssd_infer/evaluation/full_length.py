"""What a call would have taken at the length asked for, where the time limit allowed fewer tokens.

Time to the first token weighs more the fewer tokens follow, so that speedups of short calls are others than those of
long ones. Tokens that were not decoded are counted at the steady rate of those that were: between the first block and
the last but one, since the last is cut by the limit.
"""

from __future__ import annotations

from ssd_infer.evaluation.contenders import Decoded


def at_full_length(decoded: Decoded, limit: int, wanted: int) -> tuple[int, float]:
    """Return tokens and seconds of a call that was stopped after `limit` tokens a row, as if after `wanted`.

    Rows that ended before keep their length. A call of which nobody noted when tokens came is scaled as a whole.
    """
    tokens, seconds = sum(map(len, decoded.tokens)), decoded.seconds
    going = [row for row, found in enumerate(decoded.tokens) if len(found) >= limit]
    missing = wanted - limit
    if missing <= 0 or not going:
        return tokens, seconds
    slowest = max(_seconds_per_token(decoded, row) for row in going)
    return tokens + missing * len(going), seconds + missing * slowest


def _seconds_per_token(decoded: Decoded, row: int) -> float:
    """Return the seconds a token of `row` takes after the first block."""
    total, count = decoded.seconds, len(decoded.tokens[row])
    if decoded.arrivals is None:
        return total / count
    blocks = decoded.arrivals.blocks(row)
    if len(blocks) < 2:
        return total / count
    begun, first = blocks[0]
    ended, last = blocks[-2] if len(blocks) > 2 else blocks[-1]
    return (ended - begun) / 1e9 / (last - first)

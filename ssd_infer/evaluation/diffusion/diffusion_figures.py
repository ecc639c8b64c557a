"""What a row of a diffusion checkpoint tells beside acceptance and speed: calls, sequences, the sampler."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ssd_infer.evaluation.measure import Measurements


def figures(found: Measurements, name: str) -> dict[str, Any]:
    """Return NFE, rows, tokens by both, and all sampler fields of what was timed as `name`."""
    records = found.of(name)
    stats = [record.decoded.stats for record in records if record.decoded.stats]
    nfe = sum(int(item.report["nfe"]) for item in stats)
    rows = sum(int(item.report["rows"]) for item in stats)
    tokens = sum(item.total.emitted for item in stats)
    return {
        "nfe": nfe,
        "rows": rows,
        "tokens_per_nfe": tokens / nfe,
        "tokens_per_row": tokens / rows,
        "sampler": stats[-1].report["sampler"],
        "cache_exact": stats[-1].report["cache_exact"],
        "sampler_warnings": stats[-1].report["warnings"],
        "entropy": unigram_entropy([row for record in records for row in record.decoded.tokens]),
        "claim": claim(stats[-1].report),
    }


def unigram_entropy(outputs: Sequence[Sequence[int]]) -> float | None:
    """Return the mean entropy of the token counts of one output, in nats; low where text repeats itself."""
    found = []
    for tokens in outputs:
        counts = Counter(tokens)
        if tokens:
            shares = [count / len(tokens) for count in counts.values()]
            found.append(-sum(share * math.log(share) for share in shares))
    return sum(found) / len(found) if found else None


def claim(report: dict[str, Any]) -> str:
    """Say with respect to what a draft on this sampler is lossless, and under which conditions."""
    sampler = report["sampler"]
    cache = f"{sampler['cache']} cache" + ("" if report["cache_exact"] else ", which is itself approximate")
    return (
        f"the tokens of stepwise decoding with the same sampler ({sampler['order']} order, rule {sampler['rule']}, "
        f"blocks of {sampler['block_length']}, {cache}); ties by position, cache refreshed at block boundaries only"
    )

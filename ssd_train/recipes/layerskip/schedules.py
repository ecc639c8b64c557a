"""Schedules of LayerSkip as pure functions of the step, so that a resumed run needs no counters.

Source: LayerSkip, arXiv 2404.16710, sections 4.1 (dropout) and 4.2 (curricula). Layers are counted from 0.
"""

from __future__ import annotations

from collections.abc import Sequence


def depth_scale(layer: int, num_layers: int, kind: str = "exp") -> float:
    """Return D(l): 2^{l/(L-1)} - 1 for `exp`, l/(L-1) for `linear`, 1 for `uniform`."""
    if kind == "uniform":
        return 1.0
    share = layer / max(num_layers - 1, 1)
    if kind == "linear":
        return share
    if kind == "exp":
        return float(2.0**share) - 1.0
    raise ValueError(f"unknown layer scale {kind!r}")


def time_scale(step: int, max_steps: int, kind: str = "const") -> float:
    """Return S(t): 1 for `const` (continual training), 2^{t/(T-1)} - 1 for `exp` (from scratch)."""
    if kind == "const":
        return 1.0
    if kind == "exp":
        return float(2.0 ** min(1.0, step / max(max_steps - 1, 1))) - 1.0
    raise ValueError(f"unknown time scale {kind!r}")


def dropout_probability(
    layer: int, num_layers: int, step: int, max_steps: int, p_max: float, layer_kind: str, time_kind: str
) -> float:
    """Return p(l, t) = S(t) · D(l) · p_max."""
    return time_scale(step, max_steps, time_kind) * depth_scale(layer, num_layers, layer_kind) * p_max


def rotational(position: int, step: int, period: int) -> bool:
    """Return C of the rotational curriculum: 1 when (position - t) mod R = 0, once in R steps."""
    return (position - step) % period == 0


def gradual(layer: int, num_layers: int, step: int, max_steps: int) -> bool:
    """Return C of the gradual curriculum: 1 once t ≥ (L-1-l)·T/(2L), the deepest layers first."""
    return step >= (num_layers - 1 - layer) * max_steps / (2 * num_layers)


def enabled_layers(
    kind: str,
    num_layers: int,
    step: int,
    max_steps: int,
    period: int = 8,
    candidates: Sequence[int] | None = None,
) -> list[int]:
    """Return the layers whose exit is on at `step`, ascending; the last layer always is.

    `candidates` restricts the exits. Rotation runs over their positions in that list, so that each is on once in
    `period` steps; with every layer a candidate this is the paper's rotation.
    """
    last = num_layers - 1
    layers = list(range(num_layers)) if candidates is None else sorted(set(candidates))
    if kind == "rotational":
        on = [layer for place, layer in enumerate(layers) if rotational(place, step, period)]
    elif kind == "gradual":
        on = [layer for layer in layers if gradual(layer, num_layers, step, max_steps)]
    elif kind in ("all", "none"):
        on = layers if kind == "all" else []
    else:
        raise ValueError(f"unknown curriculum {kind!r}")
    return sorted({*on, last})

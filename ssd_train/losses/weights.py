"""Weights of the early-exit loss: LayerSkip's e(l) and its relatives, normalised over the layers that are on.

Source: LayerSkip, arXiv 2404.16710, section 4.2. Layers are counted from 0 and layer l predicts from its output, so
exit E of decoding is layer l = E - 1.
"""

from __future__ import annotations

from collections.abc import Iterable


def exit_scale(layer: int, num_layers: int, e_scale: float, kind: str = "sum") -> float:
    """Return the unnormalised weight e(l).

    `sum`: e_scale·l(l+1)/2, and (L-1) + e_scale·(L-2)(L-1)/2 for the last layer (the paper's);
    `linear`: e_scale·l, and L-1 for the last; `uniform`: e_scale, and 1 for the last.
    """
    last = num_layers - 1
    if kind == "sum":
        if layer < last:
            return e_scale * layer * (layer + 1) / 2
        return max(1.0, last + e_scale * (last - 1) * last / 2)
    if kind == "linear":
        return e_scale * layer if layer < last else max(1.0, float(last))
    if kind == "uniform":
        return e_scale if layer < last else 1.0
    raise ValueError(f"unknown exit weights {kind!r}")


def normalised_weights(
    on: Iterable[int], num_layers: int, e_scale: float, kind: str = "sum"
) -> dict[int, float]:
    """Return w(l) = e(l) / Σ e(i) over the layers `on`, in ascending order of layer."""
    scales = {layer: exit_scale(layer, num_layers, e_scale, kind) for layer in sorted(set(on))}
    total = sum(scales.values())
    return {layer: scale / total for layer, scale in scales.items()}

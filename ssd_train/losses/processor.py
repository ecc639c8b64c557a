"""What the processor is fast at, by its own word and not by a measurement: a resumed run must compute as before."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch

_BFLOAT16 = ("avx512_bf16", "amx_bf16", "bf16")
"""Names, on x86 and on Arm, of what multiplies in bfloat16 at full speed."""


def _able() -> Mapping[str, Any]:
    """Return the processor's instruction sets by name; the oldest torch does not know them."""
    found: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return found


@cache
def multiplies_bfloat16() -> bool:
    """Tell whether products in bfloat16 are no emulation."""
    return any(_able().get(name) for name in _BFLOAT16)


@cache
def prefers_onednn() -> bool:
    """Tell whether float32 products should leave MKL, which uses AVX-512 on Intel's processors only, for oneDNN.

    SSE4a is what AMD's processors have and Intel's have not.
    """
    able = _able()
    known = getattr(torch.ops.mkldnn, "_linear_pointwise", None) is not None
    return bool(able.get("avx512_f") and able.get("sse4a")) and torch.backends.mkldnn.is_available() and known

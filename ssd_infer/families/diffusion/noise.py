"""Gumbel noise as a pure function of seed, revealed count, position and token: no draw depends on how often we asked.

SplitMix64's finaliser (Steele et al., OOPSLA 2014) hashes the key; torch's int64 wraps as the unsigned original does,
and shifts are made logical by masking.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15
_FIRST = -4658895280553007687  # 0xBF58476D1CE4E5B9
_SECOND = -7723592293110705685  # 0x94D049BB133111EB
_MASK = (1 << 64) - 1

Key = tuple[int, int, int]
"""(seed, revealed count, position)"""


def mix(value: Tensor) -> Tensor:
    """Hash int64 values, element by element."""
    value = (value ^ _shifted(value, 30)) * _FIRST
    value = (value ^ _shifted(value, 27)) * _SECOND
    return value ^ _shifted(value, 31)


def _shifted(value: Tensor, bits: int) -> Tensor:
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def mix_int(value: int) -> int:
    """Hash one Python integer modulo 2^64, as `mix` does."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * (_FIRST & _MASK)) & _MASK
    value = ((value ^ (value >> 27)) * (_SECOND & _MASK)) & _MASK
    return value ^ (value >> 31)


def stream(key: Key) -> int:
    """Return the signed 64-bit state in which the noise of `key` begins."""
    state = 0
    for part in key:
        state = mix_int(state + (_GOLDEN & _MASK) + (part & _MASK))
    return state - (1 << 64) if state >> 63 else state


def uniform(key: Key) -> float:
    """Return one number in (0, 1) for `key`."""
    return ((mix_int(stream(key) + 1) >> 11) + 0.5) * 2.0**-53


def gumbel(keys: Sequence[Key], vocab_size: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return Gumbel noise `(len(keys), V)` in `dtype`; float32 rounds the uniforms first, as samplers in it do."""
    starts = torch.tensor([stream(key) for key in keys], dtype=torch.int64, device=device)
    steps = torch.arange(1, vocab_size + 1, dtype=torch.int64, device=device) * _GOLDEN
    bits = _shifted(mix(starts[:, None] + steps[None]), 11)
    if dtype == torch.float32:
        uniforms = ((bits >> 29).to(dtype) + 0.5) * 2.0**-24
    else:
        uniforms = (bits.to(torch.float64) + 0.5) * 2.0**-53
    return -torch.log(-torch.log(uniforms))

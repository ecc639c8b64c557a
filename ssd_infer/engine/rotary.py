"""Rotary tables of one decoding: one for each type of layer, and of each position as plain decoding would encode it.

Some types (`dynamic`, `longrope`) follow the longest position of a pass. Plain decoding runs a prompt in one pass and
then one token a pass, so a token of the prompt is encoded by the prompt's length, and every later token by its own
position. That is what the tables hold, whatever passes a draft makes; no formula is repeated, a copy of the model's own
module is asked position by position, as plain decoding asks it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ssd_infer.engine.positions import loose_copy, rope_kind, switch_of, switches
from ssd_infer.engine.window import Rotary, Window

Compute = Callable[[nn.Module, Tensor, str | None], Rotary]
"""(rotary module, positions `(1, T)`, type of layer) → table `(1, T, D)`."""


class VaryingRotary:
    """Tables of one type of layer whose rotary embeddings follow the longest position of a pass."""

    def __init__(self, rotary: nn.Module, config: Any, compute: Compute, kind: str | None) -> None:
        """Work on copies of `rotary`, which is left as it is; `compute` asks one for a table."""
        self._compute, self._kind, self._rotary = compute, kind, rotary
        once = switch_of(config, kind) if rope_kind(config, rotary, kind) in ("longrope", "su") else None
        self._together = once is not None
        self.switch = min(switches(config), default=0) if once is None else once
        """Passes that end before this position are encoded as they are in short texts."""
        self._kept: Rotary | None = None
        self._copy: tuple[nn.Module, torch.device, torch.dtype] | None = None

    def steps(self, first: int, last: int, device: torch.device, dtype: torch.dtype) -> Rotary:
        """Return the table `(1, last - first, D)` of positions that are each the last of their pass.

        What was computed from position 0 on is kept for the next call.
        """
        if first:
            return self._alone(self.fresh(device), first, last, device)
        if self._copy is None or self._copy[1:] != (device, dtype):
            self._copy, self._kept = (self.fresh(device), device, dtype), None
        if self._kept is None:
            self._kept = self._alone(self._copy[0], 0, last, device)
        elif (reached := _slots(self._kept)) < last:
            more = self._alone(self._copy[0], reached, last, device)
            self._kept = _end_to_end([self._kept, more])
        return _until(self._kept, last)

    def prompt(self, first: int, last: int, device: torch.device) -> Rotary:
        """Return the table `(1, last - first, D)` of positions that are encoded in one pass."""
        return self._asked(self.fresh(device), first, last, device)

    @torch.inference_mode(mode=False)
    def fresh(self, device: torch.device) -> nn.Module:
        """Return a copy as a model just loaded has it: being asked for the first position forgets longer texts.

        Outside of inference mode, since a copy outlives the call and may be asked, and changed, inside and outside.
        """
        copied = loose_copy(self._rotary)
        self._asked(copied, 0, 1, device)
        return copied

    def _alone(self, rotary: nn.Module, first: int, last: int, device: torch.device) -> Rotary:
        """Ask for positions one after another; together where a pass that ends at any of them is encoded alike."""
        middle = min(max(first, self.switch), last)
        spans = [(first, middle)] if first < middle else []
        spans += [(middle, last)] if self._together else [(at, at + 1) for at in range(middle, last)]
        return _end_to_end([self._asked(rotary, *span, device) for span in spans if span[0] < span[1]])

    @torch.inference_mode(mode=False)
    @torch.no_grad()
    def _asked(self, rotary: nn.Module, first: int, last: int, device: torch.device) -> Rotary:
        return self._compute(rotary, torch.arange(first, last, device=device)[None], self._kind)


class RotaryTables:
    """The tables of one decoding, by type of layer; None is the type of models with a single one."""

    def __init__(self, usual: dict[str | None, Rotary], prompts: dict[str | None, Rotary]) -> None:
        """Take tables `(1, capacity, D)`, and `(B, T, D)` for prompts that are encoded by their lengths."""
        self._usual = usual
        self._prompts = prompts

    def at(self, window: Window, kind: str | None) -> Rotary:
        """Return the table `(1|B, T, D)` at the positions of `window`."""
        table = self._usual[kind]
        if self._prompts and window.start == 0 and type(window) is Window:
            prompt = self._prompts[kind]
            if _height(prompt) == len(window.starts) and _slots(prompt) >= window.width:
                return _until(prompt, window.width)
        if isinstance(table, Tensor):
            return _at(table, window)
        return _at(table[0], window), _at(table[1], window)


def prompt_tables(
    varying: dict[str | None, VaryingRotary], lengths: Sequence[int], origin: int, device: torch.device
) -> dict[str | None, Rotary]:
    """Return a table `(B, T, D)` a type of layer for prompts of these `lengths`; none where all prompts are short.

    `origin` is the position of their first token.
    """
    longest = max(lengths, default=0)
    if not any(origin + longest > one.switch for one in varying.values()):
        return {}
    found: dict[str | None, Rotary] = {}
    for kind, one in varying.items():
        alone = {end: _widened(one.prompt(origin, origin + end, device), longest) for end in set(lengths)}
        found[kind] = _above([alone[length] for length in lengths])
    return found


def _at(table: Tensor, window: Window) -> Tensor:
    """Return the entries `(1|B, T, D)` of `table` `(1, capacity, D)` at the slots of `window`."""
    if window.start is not None and window.consecutive:
        return table[:, window.start : window.end]
    return table[0, window.position_ids]


def _tensors(table: Rotary) -> tuple[Tensor, ...]:
    return (table,) if isinstance(table, Tensor) else table


def _table_of(parts: Sequence[Tensor]) -> Rotary:
    return parts[0] if len(parts) == 1 else (parts[0], parts[1])


def _slots(table: Rotary) -> int:
    return int(_tensors(table)[0].shape[1])


def _height(table: Rotary) -> int:
    return int(_tensors(table)[0].shape[0])


def _until(table: Rotary, length: int) -> Rotary:
    return _table_of([part[:, :length] for part in _tensors(table)])


def _widened(table: Rotary, length: int) -> Rotary:
    return _table_of([nn.functional.pad(part, (0, 0, 0, length - part.shape[1])) for part in _tensors(table)])


def _end_to_end(tables: Sequence[Rotary]) -> Rotary:
    return _table_of([torch.cat(parts, dim=1) for parts in zip(*map(_tensors, tables), strict=True)])


def _above(tables: Sequence[Rotary]) -> Rotary:
    return _table_of([torch.cat(parts, dim=0) for parts in zip(*map(_tensors, tables), strict=True)])

"""The order of a model's tokens beside its checkpoint, and the question whether it belongs to what is there now.

Ids mean something with one tokenizer only, and an order is of use with the weights it was made of. A file that belongs
to others, or does not hold every id once, is not used: the order is then made anew, and the reason is said.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ssd_infer.atomic import write_bytes, write_text
from ssd_infer.checkpoint.always_ids import tokenizer_digest
from ssd_infer.checkpoint.content import file_digest, weights_digest
from ssd_infer.engine.target import Target
from ssd_infer.errors import DataError
from ssd_infer.jsonio import from_json, to_json

WEIGHTS, FACTS = "ssd_draft_head.safetensors", "ssd_draft_head.json"
VERSION = 1


@dataclass(frozen=True, slots=True)
class SavedOrder:
    """Every id of the vocabulary once, `(V,)`, and the positions of own text it was made of."""

    order: Tensor
    positions: int


def save(folder: Path, target: Target, found: SavedOrder) -> str:
    """Write `found` into `folder`; return "" or, where that cannot be done, why. An order can always be made anew."""
    from safetensors.torch import save as as_bytes

    try:
        write_bytes(folder / WEIGHTS, as_bytes({"order": found.order.to(torch.int32).contiguous()}))
        facts = {
            **_identity(target, folder),
            "positions": found.positions,
            "file": file_digest(folder / WEIGHTS),
        }
        write_text(folder / FACTS, to_json(facts, indent=1, sort_keys=True) + "\n")
    except (OSError, DataError) as error:
        return f"{WEIGHTS} was not written ({getattr(error, 'strerror', None) or error})"
    return ""


def load(folder: Path, target: Target) -> tuple[SavedOrder | None, str]:
    """Return the order that belongs to `target` and "", or None and why there is none ("" when there is no file)."""
    if not (folder / FACTS).exists() and not (folder / WEIGHTS).exists():
        return None, ""
    try:
        facts = from_json((folder / FACTS).read_text("utf-8"))
        digest = file_digest(folder / WEIGHTS)
        here = _identity(target, folder)
    except (OSError, ValueError, DataError) as error:
        return None, _refused(f"cannot be read ({getattr(error, 'strerror', None) or type(error).__name__})")
    if not isinstance(facts, dict) or type(facts.get("positions")) is not int:
        return None, _refused("is damaged")
    other = [key for key, value in here.items() if facts.get(key) != value]
    if other:
        return None, _refused(f"belongs to another checkpoint ({_said(other[0])})")
    order = _read(folder / WEIGHTS) if facts.get("file") == digest else None
    if order is None or not _complete(order, target.vocab_size):
        return None, _refused("is damaged")
    return SavedOrder(order.long(), facts["positions"]), ""


def _refused(why: str) -> str:
    return f"{WEIGHTS} {why}, so the tokens were ranked anew"


def _said(key: str) -> str:
    return {"weights": "other weights", "tokenizer": "another tokenizer"}.get(key, f"another {key}")


def _identity(target: Target, folder: Path) -> dict[str, Any]:
    return {
        "version": VERSION,
        "vocabulary": target.vocab_size,
        "weights": weights_digest(target.model),
        "tokenizer": tokenizer_digest(folder),
    }


def _read(path: Path) -> Tensor | None:
    """Return the order in the file, None where it holds none; its size is looked at before anything is read."""
    from safetensors import SafetensorError, safe_open

    if path.stat().st_size > 1 << 28:
        return None
    try:
        with safe_open(path, framework="pt") as file:
            return file.get_tensor("order") if list(file.keys()) == ["order"] else None
    except (SafetensorError, OSError, ValueError):
        return None


def _complete(order: Tensor, vocabulary: int) -> bool:
    """Tell whether `order` holds every id of a vocabulary once."""
    if order.dim() != 1 or order.dtype != torch.int32 or order.numel() != vocabulary:
        return False
    return torch.equal(order.sort().values, torch.arange(vocabulary, dtype=order.dtype))

"""An expert store on disk: one safetensors file whose experts can be read directly, and the rest of the model.

`experts.safetensors` holds `layers.L.experts.E` for every expert, both matrices as one flat row, so that an expert is
one contiguous extent; `dense.safetensors` holds every other tensor under the name the model knows it by.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from ssd_infer.checkpoint.content import files_digest, is_added
from ssd_infer.errors import CheckpointError, OutputError
from ssd_infer.jsonio import to_json
from ssd_infer.offload.layout import MATRICES, MoeLayer

EXPERTS, DENSE, INDEX = "experts.safetensors", "dense.safetensors", "index.json"
VERSION = 2
"""From 2 on `source` is a hash of whole files."""
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_PAGE = 4096


@dataclass(frozen=True, slots=True)
class Extent:
    """Where an expert lies in the file, in bytes."""

    start: int
    size: int


@dataclass(frozen=True, slots=True)
class StoreIndex:
    """What a store holds: extents by (layer, expert), and the shape `(2·d_ff, d)`, `(d, d_ff)` of the matrices."""

    path: Path
    extents: dict[tuple[int, int], Extent]
    shapes: tuple[tuple[int, int], tuple[int, int]]
    dtype: torch.dtype
    source: str | None = None
    """`fingerprint` of the checkpoint it was written from, where that was a directory."""

    @property
    def expert_bytes(self) -> int:
        """Bytes of one expert."""
        return next(iter(self.extents.values())).size

    @property
    def layers(self) -> list[int]:
        """Decoder layers that have routed experts."""
        return sorted({layer for layer, _ in self.extents})


def write_store(
    model: nn.Module, layers: list[MoeLayer], folder: Path, source: str | None = None
) -> StoreIndex:
    """Write the experts of `layers` and all other tensors of `model` to `folder`; raises OutputError.

    All is written beside an older store, which stays whole if that fails, and for whoever reads it now. The index
    comes last, so what was interrupted is no store.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    experts = {f"layers.{layer.index}.experts": layer for layer in layers}
    owned = {id(part) for layer in layers for part in layer.matrices}
    rest = {
        name: part.detach().contiguous().clone()
        for name, part in model.state_dict(keep_vars=True).items()
        if id(part) not in owned
    }
    parts = {name: folder / f"{name}.{os.getpid()}.part" for name in (EXPERTS, DENSE)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write_experts(parts[EXPERTS], experts)
        save_file(rest, str(parts[DENSE]))
        (folder / INDEX).unlink(missing_ok=True)
        for name, part in parts.items():
            part.replace(folder / name)
        shapes = [list(part.shape[1:]) for part in layers[0].matrices]
        about = {"version": VERSION, "shapes": shapes, "source": source}
        (folder / INDEX).write_text(to_json(about), encoding="utf-8")
    except (OSError, SafetensorError) as error:
        for part in parts.values():
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
        raise OutputError(
            f"experts.store: cannot write {str(folder)!r} ({getattr(error, 'strerror', None) or error}); "
            "name a directory on a writable disk with room for the whole model"
        ) from error
    return read_index(folder)


def _write_experts(path: Path, experts: dict[str, MoeLayer]) -> None:
    """Write one row an expert; the data begins at a page, so that pages and experts coincide where sizes allow."""
    header: dict[str, Any] = {}
    offset = 0
    for name, layer in experts.items():
        first = layer.matrices[0]
        width = layer.expert_bytes // first.element_size()
        for expert in range(layer.num_experts):
            ends = [offset, offset + layer.expert_bytes]
            header[f"{name}.{expert}"] = {
                "dtype": _NAMES[first.dtype],
                "shape": [width],
                "data_offsets": ends,
            }
            offset = ends[1]
    text = to_json(header).encode()
    text += b" " * (-(len(text) + 8) % _PAGE)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for layer in experts.values():
            for expert in range(layer.num_experts):
                for part in layer.matrices:
                    file.write(part[expert].detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())


def read_index(folder: Path) -> StoreIndex:
    """Read and check what `folder` holds; raises CheckpointError when a file is missing, cut short or foreign."""
    path = folder / EXPERTS
    try:
        about = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        with path.open("rb") as file:
            start = struct.unpack("<Q", file.read(8))[0]
            size = path.stat().st_size
            header = json.loads(file.read(min(start, size)))
        shapes = tuple((int(rows), int(columns)) for rows, columns in about["shapes"])
        entries = dict(_entries(header, 8 + start))
        dtype = _DTYPES[next(iter(header.values()))["dtype"]]
        good = about["version"] == VERSION and len(shapes) == len(MATRICES) and entries
    except OSError as error:
        raise CheckpointError(
            f"experts.store: {str(folder)!r} has no readable expert store ({error.strerror or error}); "
            "write it with ssd_infer.offload.offload.make_store"
        ) from error
    except (ValueError, KeyError, TypeError, IndexError, StopIteration, struct.error) as error:
        raise CheckpointError(
            f"experts.store: {str(path)!r} is damaged ({type(error).__name__}); write the store again"
        ) from error
    elements = sum(rows * columns for rows, columns in shapes)
    if not good or any(extent.size != elements * dtype.itemsize for extent in entries.values()):
        raise CheckpointError(
            f"experts.store: {str(path)!r} does not hold what its index says; write the store again"
        )
    end = max(extent.start + extent.size for extent in entries.values())
    if size != end:
        raise CheckpointError(
            f"experts.store: {str(path)!r} is {size} bytes long, its header says {end}; write the store again"
        )
    return StoreIndex(path, entries, cast(Any, shapes), dtype, about.get("source"))


def read_dense(folder: Path) -> dict[str, torch.Tensor]:
    """Read all tensors but the experts; raises CheckpointError when the file is missing or damaged."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return {name: part.clone() for name, part in load_file(str(folder / DENSE)).items()}
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"experts.store: {str(folder / DENSE)!r} cannot be read ({error}); write the store again"
        ) from error


def fingerprint(checkpoint: Path) -> str | None:
    """Return a hash of all weights in a checkpoint's directory; None where it holds no safetensors files.

    Every byte is read: training may leave any part of a tensor as it was, above all experts no token came to.
    """
    files = [path for path in sorted(checkpoint.glob("*.safetensors")) if not is_added(path.name)]
    return files_digest(files, "checkpoint", checkpoint) if files else None


def is_stale(index: StoreIndex, checkpoint: Path) -> bool:
    """Tell whether a store is known to be of other weights than those in `checkpoint`."""
    return index.source is not None and fingerprint(checkpoint) not in (None, index.source)


def _entries(header: dict[str, Any], base: int) -> Iterator[tuple[tuple[int, int], Extent]]:
    for name, entry in header.items():
        _, layer, _, expert = name.split(".")
        if name != f"layers.{int(layer)}.experts.{int(expert)}":
            raise ValueError(name)
        first, last = (int(value) for value in entry["data_offsets"])
        if not 0 <= first < last:
            raise ValueError(name)
        yield (int(layer), int(expert)), Extent(base + first, last - first)

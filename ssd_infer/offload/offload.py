"""Plug a resident set into transformers: its experts modules look their matrices up instead of owning them.

Goes through transformers' ExpertsInterface, so routers, shared experts, masks and everything else stay the model's.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from ssd_infer.checkpoint.load import Loaded, load, load_beside
from ssd_infer.engine.kernels.products import product
from ssd_infer.errors import CheckpointError, ConfigError, Problem
from ssd_infer.offload.files import (
    DENSE,
    INDEX,
    StoreIndex,
    fingerprint,
    is_stale,
    read_dense,
    read_index,
    write_store,
)
from ssd_infer.offload.layout import MATRICES, MoeLayer, moe_layers, routes, unsupported_reason
from ssd_infer.offload.resident import ResidentSet
from ssd_infer.offload.store import Access, DiskStore, ExpertStore, MemoryStore

IMPLEMENTATION = "ssd_offload"
"""Name under which transformers' experts modules find `routed_experts`."""
FOLDER = "experts"
_PLACE = "ssd_resident"
_FEW = 6
"""Tokens up to which an expert's product takes them as columns."""


def routed_experts(module: nn.Module, hidden: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """Return the routed output `(T, d)` of one layer for `hidden` `(T, d)` with experts from a resident set.

    Contributions are kept apart until all have come and summed in the router's order, so the result does not depend
    on the order in which experts arrive. An expert whose weights are all zero is not asked for.
    """
    resident, layer = cast("tuple[ResidentSet, int]", module.__dict__[_PLACE])
    tokens, k = top_k_index.shape
    weights = top_k_weights.to(hidden.dtype)
    places = _places(top_k_index, weights)
    spans, order = _spans(places)
    index = torch.tensor(order, dtype=torch.long, device=hidden.device)
    inputs = hidden if tokens == 1 else hidden[index // k]
    outputs = hidden.new_empty((len(order), hidden.shape[1]))
    for expert, (first, second) in resident.visit(layer, {e: len(found) for e, found in places.items()}):
        start, end = spans[expert]
        outputs[start:end] = _expert(module, inputs if tokens == 1 else inputs[start:end], first, second)
    parts = hidden.new_zeros((tokens * k, hidden.shape[1])).index_copy_(0, index, outputs)
    return torch.bmm(weights.unsqueeze(1), parts.view(tokens, k, -1)).squeeze(1)


def _places(index: Tensor, weights: Tensor) -> dict[int, list[int]]:
    """Return for each expert the flat positions in `(T, k)` that use it with a weight above zero."""
    found: dict[int, list[int]] = {}
    flat = zip(index.reshape(-1).tolist(), weights.reshape(-1).tolist(), strict=True)
    for place, (expert, weight) in enumerate(flat):
        if weight != 0:
            found.setdefault(expert, []).append(place)
    return found


def _spans(places: dict[int, list[int]]) -> tuple[dict[int, tuple[int, int]], list[int]]:
    """Return where each expert's positions lie when they are put side by side, and all positions so ordered."""
    spans, order = dict[int, tuple[int, int]](), list[int]()
    for expert, found in places.items():
        spans[expert] = len(order), len(order) + len(found)
        order += found
    return spans, order


def _expert(module: nn.Module, hidden: Tensor, first: Tensor, second: Tensor) -> Tensor:
    gated: Tensor = cast(Any, module)._apply_gate(_times(hidden, first))
    return _times(gated, second)


def _times(hidden: Tensor, weight: Tensor) -> Tensor:
    """Return `hidden` `(T, d)` times the transpose of `weight` `(m, d)`.

    On a CPU the product of the matrix with a few columns reads it two to three times as fast as the one of a few rows
    with the matrix (0.09 against 0.25 ms for an expert of 3 MiB on a Zen 5), so a few tokens become columns, and a
    single one two equal columns, laid out in memory: a stride of zero takes the slow way.
    """
    tokens = len(hidden)
    if hidden.device.type != "cpu" or tokens > _FEW:
        return product(hidden, weight, least=0)
    columns = hidden.repeat(2, 1) if tokens == 1 else hidden
    return (weight @ columns.t()).t()[:tokens]


def register() -> None:
    """Make the implementation known to transformers; calling it again changes nothing."""
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register(IMPLEMENTATION, routed_experts)


def offloading_config(config: Any) -> Any:
    """Return a copy of `config` whose experts modules look their matrices up."""
    register()
    view = copy.copy(config)
    view._experts_implementation_internal = IMPLEMENTATION
    return view


def offload_view(layers: Sequence[nn.Module], resident: ResidentSet) -> list[nn.Module]:
    """Return shallow copies of decoder `layers` that take their experts from `resident`; the originals stay."""
    view = list(layers)
    for part in moe_layers(layers):
        experts = copy.copy(part.experts)
        experts.__dict__ |= {"config": offloading_config(cast(Any, part.experts).config)}
        experts.__dict__[_PLACE] = (resident, part.index)
        view[part.index] = with_block(view[part.index], part.block, {"experts": experts})
    return view


def with_block(layer: nn.Module, block: str | None, parts: dict[str, nn.Module]) -> nn.Module:
    """Return a shallow copy of decoder `layer` whose module `block`, or which itself (None), has `parts` replaced."""
    if block is not None:
        parts = {block: with_block(getattr(layer, block), None, parts)}
    view = copy.copy(layer)
    view._modules = dict(layer._modules) | dict(parts)
    return view


def resident_of(layers: Sequence[nn.Module]) -> ResidentSet | None:
    """Return the resident set that `layers` take their experts from; None when they own them."""
    for part in moe_layers(layers):
        place = part.experts.__dict__.get(_PLACE)
        if place is not None:
            return cast("tuple[ResidentSet, int]", place)[0]
    return None


def make_store(checkpoint: str | Path, folder: str | Path | None = None) -> StoreIndex:
    """Write the expert store of a checkpoint, by default inside it; loads the whole model once.

    Raises ConfigError for a model without routed experts, OutputError where nothing can be written.
    """
    loaded = load(checkpoint, device="cpu")
    layers = _routed(loaded.model)
    place = Path(folder) if folder else Path(checkpoint) / FOLDER
    return write_store(loaded.model, layers, place, fingerprint(Path(checkpoint)))


def load_offloaded(
    checkpoint: str | Path,
    budget: float,
    *,
    store: str | Path | None = None,
    policy: str = "ahead",
    access: Access = "direct",
    device: str | torch.device | None = None,
    trace: bool = False,
) -> Loaded:
    """Load a checkpoint without its experts, which come from the store on disk into at most `budget` bytes of memory.

    `budget` up to 1 is a share of all expert bytes. The experts are never in memory together, not even while loading.
    Raises ConfigError for a budget below the need of one token in one layer, CheckpointError for an unusable store.
    """
    folder = Path(store) if store else Path(checkpoint) / FOLDER
    disk = DiskStore(folder, access)
    model = _skeleton(str(checkpoint), disk)
    if is_stale(disk.index, Path(checkpoint)):
        raise CheckpointError(
            f"experts.store: {str(folder)!r} was written from other weights than {str(checkpoint)!r} holds now; "
            "write it again with ssd_infer.offload.offload.make_store"
        )
    lost, unknown = model.load_state_dict(read_dense(folder), strict=False, assign=True)
    lost = [name for name in lost if not name.endswith(MATRICES)]
    model.tie_weights()
    lost = [name for name in lost if model.get_parameter(name).is_meta]
    if lost or unknown:
        raise CheckpointError(
            f"experts.store: {str(folder / DENSE)!r} does not fit the checkpoint ({(lost + unknown)[0]}); "
            "write the store again"
        )
    where = torch.device(device) if device else torch.device("cuda" if torch.cuda.is_available() else "cpu")
    attach(model, disk, budget, policy, where, trace=trace)
    return Loaded(
        model.eval(), load_beside(str(checkpoint), "AutoTokenizer", trust_remote_code=False), str(checkpoint)
    )


def evaluation_model(checkpoint: str, budget: float, dtype: str, device: str | None) -> Loaded:
    """Return `checkpoint` with its experts on disk; writes the store first where there is none of these weights.

    Raises ConfigError unless the store holds experts of `dtype`: they are read as they are, not converted.
    """
    folder = Path(checkpoint) / FOLDER
    index = read_index(folder) if (folder / INDEX).exists() else None
    if index is None or is_stale(index, Path(checkpoint)):
        index = make_store(checkpoint)
    if index.dtype != getattr(torch, dtype):
        name = str(index.dtype).removeprefix("torch.")
        rule = f"must be {name}, which the experts on disk are"
        raise ConfigError([Problem("dtype", rule, dtype, f"use dtype={name}")])
    return load_offloaded(checkpoint, budget, device=device)


def attach(
    model: Any, store: ExpertStore, budget: float, policy: str, device: torch.device, *, trace: bool = False
) -> ResidentSet:
    """Let a model that was built for it take its experts from `store`; everything else moves to `device`."""
    layers = _routed(model)
    total = len(store.keys) * store.expert_bytes
    top_k = max(layer.top_k for layer in layers)
    resident = ResidentSet(store, budget_bytes(budget, total), top_k, policy, device, trace=trace)
    for part in layers:
        for name in MATRICES:
            shape = getattr(part.experts, name).shape
            empty = torch.empty(shape, dtype=store.dtype, device="meta")
            part.experts._parameters[name] = nn.Parameter(empty, requires_grad=False)
        part.experts.__dict__ |= {"config": offloading_config(cast(Any, part.experts).config)}
        part.experts.__dict__[_PLACE] = (resident, part.index)
    if device.type != "cpu":
        _move(model, device)
    return resident


def offload_to_memory(
    model: nn.Module, budget: float, policy: str = "ahead"
) -> tuple[list[nn.Module], ResidentSet]:
    """Return a view of `model`'s layers whose experts come from its own, in CPU memory, and the set they come from."""
    base = getattr(model, cast(Any, model).base_model_prefix)
    layers = list(base.layers)
    store = MemoryStore(_routed(model))
    total = len(store.keys) * store.expert_bytes
    top_k = max(layer.top_k for layer in moe_layers(layers))
    resident = ResidentSet(
        store, budget_bytes(budget, total), top_k, policy, next(base.embed_tokens.parameters()).device
    )
    return offload_view(layers, resident), resident


def budget_bytes(budget: float, total: int) -> int:
    """Return `budget` in bytes, of `total` where it is a share; raises ConfigError for one that is no size."""
    if not 0 < budget < math.inf:
        raise ConfigError(
            [
                Problem(
                    "experts.budget",
                    "must be above 0 and finite: a share of all expert bytes, or bytes",
                    budget,
                    "try 0.25",
                )
            ]
        )
    return round(budget * total) if budget <= 1 else int(budget)


def _skeleton(checkpoint: str, store: DiskStore) -> Any:
    """Build the model of `checkpoint` without memory for its parameters."""
    from accelerate import init_empty_weights
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(checkpoint)
    with init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(config, dtype=store.dtype)
    layers = _routed(model)
    shapes = tuple(tuple(part.shape[1:]) for part in layers[0].matrices)
    keys = {(layer.index, expert) for layer in layers for expert in range(layer.num_experts)}
    if shapes != store.shapes or keys != set(store.keys):
        raise CheckpointError(
            f"experts.store: {str(store.index.path)!r} holds the experts of another model than {checkpoint!r}"
        )
    generation = Path(checkpoint) / "generation_config.json"
    if generation.is_file():
        model.generation_config = type(model.generation_config).from_pretrained(checkpoint)
    return model


def _routed(model: nn.Module) -> list[MoeLayer]:
    """Return the routed layers of `model`; raises ConfigError when there are none that can be offloaded."""
    base = getattr(model, cast(Any, model).base_model_prefix, None)
    layers = moe_layers(getattr(base, "layers", []))
    reason = None
    if not layers and not routes([model]):
        reason = "the checkpoint has no routed experts"
    reason = reason or unsupported_reason(str(cast(Any, model).config.model_type), layers, [model])
    missing = [name for name in MATRICES if layers and not hasattr(layers[0].experts, name)]
    if missing:
        reason = reason or f"{type(layers[0].experts).__name__} keeps its experts without `{missing[0]}`"
    if reason is not None:
        raise ConfigError([Problem("experts", f"cannot be offloaded: {reason}", type(model).__name__)])
    return layers


def _move(model: Any, device: torch.device) -> None:
    """Move everything but the experts to `device`."""
    for module in model.modules():
        if _PLACE in module.__dict__:
            continue
        for table in (module._parameters, module._buffers):
            for name, part in table.items():
                if part is not None and not part.is_meta:
                    moved = part.to(device)
                    table[name] = (
                        nn.Parameter(moved, part.requires_grad) if isinstance(part, nn.Parameter) else moved
                    )


__all__ = [
    "attach",
    "load_offloaded",
    "make_store",
    "offload_to_memory",
    "offload_view",
    "read_index",
    "resident_of",
]

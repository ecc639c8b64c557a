"""Compare a layer-wise view with the model's own forward, where the behaviour of models changes.

Looked at: one pass against token after token with the model's own cache; windows of one token and of several; rows of
different lengths; tokens past the edge of a sliding window; positions around those where encodings may switch, without
running the tokens before them; rotary tables far away.

It costs eighteen passes of a few tokens, once a model: some 20 ms for tiny models. Longer texts are run only as far
as tokens times parameters stay below `_EFFORT` (a fraction of a second on two cores); a sliding window too wide for
that is compared narrowed, in a shallow copy of the model.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from ssd_infer.engine.examine_states import states_apart
from ssd_infer.engine.families.parts import base_path
from ssd_infer.engine.model_view import cache_keyword, evaluating
from ssd_infer.engine.positions import edges, loose_copy, switches, table_shift
from ssd_infer.engine.window import Chunk, Reach, Rotary, Window
from ssd_infer.errors import UnsupportedModelError

if TYPE_CHECKING:
    from ssd_infer.engine.target import Target

_EFFORT = 1 << 33
"""Tokens times parameters that one pass of the examination may cost."""
_FEWEST, _USUAL, _MOST = 8, 48, 1024
"""Tokens a pass takes at least, without a reason to take more, and at most."""
_PAST, _NARROW = 8, 4
"""Tokens run past an edge; the width a sliding window is narrowed to."""
_AHEAD = 3
"""Tokens before a switch that the far passes begin with."""
_TABLE = 1e-5
_STATES = 10
"""How much further apart states may be than logits: scans over blocks sum otherwise than steps do."""
_OUTSIDE = (
    "embedding_multiplier",
    "logits_scaling",
    "logit_scale",
    "final_logit_softcapping",
    "lm_head_multiplier",
    "scale_emb",
)
"""Names under which families keep what they do to embeddings and logits."""

Outcome = tuple[float, str]
"""How far two results are apart, as a share of the largest logit, and what was compared."""
OURS = "running its layers one by one differs from its own forward"
THEIRS = "its own forward over several tokens at once differs from its own forward token by token"


@torch.inference_mode()
def examine(target: Target) -> None:
    """Raise UnsupportedModelError unless `target` is the same function as its model, wherever that can be seen.

    Autocast is left aside: in its precision passes of different shapes differ by rounding.
    """
    with evaluating(target.model), _own_precision(target.device.type):
        _check_tables(target)
        _check_states(target)
        for where, trial in _trials(target):
            error, what = _tried(target, trial, 0)
            if not error <= tolerance(target) and getattr(target.config, "num_experts_per_tok", None):
                # A tie between experts may fall either way; what the view does wrong, it does wrong again.
                error, what = _tried(target, trial, 1)
            if not error <= tolerance(target):
                raise UnsupportedModelError(
                    f"{target.name} cannot be decoded layer by layer here: {what} by {error:.1e} of the largest "
                    f"logit{where} ({_omitted(target.config)})"
                )


def _omitted(config: Any) -> str:
    """Say what of a configuration changes logits outside of the layers, as far as its names are known."""
    values = {name: getattr(config, name, None) for name in _OUTSIDE}
    found = [f"{name}={value}" for name, value in values.items() if value not in (None, False, 1)]
    if not found:
        return "it does something that this engine omits"
    return f"this engine omits {' and '.join(found)} of its configuration"


def _check_states(target: Target) -> None:
    """Raise UnsupportedModelError where recurrent layers remember otherwise what they see in blocks."""
    if not target.recurrent:
        return
    apart = states_apart(target)
    if not apart <= _STATES * tolerance(target):
        raise UnsupportedModelError(
            f"{target.name} cannot be decoded layer by layer here: its recurrent layers remember several tokens at "
            f"once otherwise than one after another (their states differ by {apart:.1e} of the largest entry)"
        )


def _own_precision(device_type: str) -> AbstractContextManager[Any]:
    """Return a context in which products are of the precision of the weights."""
    if not torch.amp.is_autocast_available(device_type):
        return nullcontext()
    return torch.autocast(device_type, enabled=False)


def tolerance(target: Target) -> float:
    """Return the share of the largest logit that rounding may account for."""
    return max(1e-4, 8 * torch.finfo(target.dtype).eps)


def _tried(target: Target, trial: Callable[[int], Outcome], seed: int) -> Outcome:
    """Return what `trial` finds in a model whose rotary embeddings have seen no text yet."""
    with _forgetful(target):
        return trial(seed)


@contextmanager
def _forgetful(target: Target) -> Iterator[None]:
    """Let rotary embeddings that remember the longest text forget it, and put them back as they were."""
    rotary = target.rotary
    if rotary is None or not target.varies:
        yield
        return
    own = {name: value for name, value in vars(rotary).items() if not name.startswith("_")}
    buffers = {name: (part, part.clone()) for name, part in rotary._buffers.items() if part is not None}
    first = torch.zeros((1, 1), dtype=torch.long, device=target.device)
    try:
        for kind in dict.fromkeys(target.kinds):
            target.rotary_at(first, kind)
        yield
    finally:
        vars(rotary).update(own)
        for name, (part, value) in buffers.items():
            rotary._buffers[name] = part.copy_(value)


def _check_tables(target: Target) -> None:
    """Raise UnsupportedModelError where the rotary table of a position depends on the rest of the pass.

    Types that are known to are left to the passes across their switch.
    """
    if target.rotary is None or target.varies:
        return
    rotary, places = loose_copy(target.rotary), switches(target.config)
    for kind in dict.fromkeys(target.kinds):
        shift = table_shift(partial(_asked, target, rotary, kind), places, target.device)
        if not shift <= max(_TABLE, torch.finfo(target.dtype).eps):
            raise UnsupportedModelError(
                f"{target.name} cannot be decoded layer by layer here: its rotary embeddings of a position depend on "
                f"the other positions of a pass (they differ by {shift:.1e})"
            )


def _asked(target: Target, rotary: nn.Module, kind: str | None, at: Tensor) -> Rotary:
    return target.ask(rotary, at, kind)


def _trials(target: Target) -> list[tuple[str, Callable[[int], Outcome]]]:
    """Return what is compared, cheapest and most telling first, each with where it looks."""
    widths = {_width(reach) for reach in target.reach if reach is not None}
    length, room = _length(target, widths)
    narrow = None if max(widths, default=0) < length else _narrowed(target)
    if narrow is None:
        first = ("", lambda seed: _near(target, target.model, length, seed))
    else:
        view, model = narrow
        first = (" past a narrowed window", lambda seed: _near(view, model, _NARROW + _PAST, seed))
    trials: list[tuple[str, Callable[[int], Outcome]]] = [
        first,
        (" in rows of different lengths", lambda seed: _ragged(target, _fitting(target, length), seed)),
    ]
    far = _far_places(target, length)
    if "position_ids" in inspect.signature(cast(Any, target.model).forward).parameters:
        reached = far if room > _USUAL else far[:1]
        trials += [(f" at position {place}", _far_trial(target, place)) for place in reached]
    return trials


def _fitting(target: Target, length: int) -> int:
    """Return a length at which rows of it and of half of it can be decoded together."""
    while length > _AHEAD + 1 and target.unfit_reason([length, length // 2], 0) is not None:
        length //= 2
    return length


def _far_places(target: Target, length: int) -> list[int]:
    """Return the positions past a pass of `length` around which steps are compared.

    Where tables follow the longest position it is their switch: a step past it, and a prompt past it.
    """
    if target.varies:
        switch = switches(target.config)[0]
        return [switch, switch + _AHEAD - 1]
    last = math.inf if target.limit is None else target.limit - _AHEAD
    return [place for place in switches(target.config) if length + _AHEAD < place <= last]


def _width(reach: Reach) -> int:
    """Return after how many tokens a layer of this reach hides some."""
    return reach.size if isinstance(reach, Chunk) else int(reach or 0)


def _length(target: Target, widths: set[int]) -> tuple[int, int]:
    """Return the tokens of a pass, past every edge that can be afforded, and how many can be."""
    size = sum(part.numel() for part in target.model.parameters())
    room = max(_FEWEST, min(_MOST, _EFFORT // max(1, size)))
    room = room if target.limit is None else min(room, target.limit)
    reached = [edge + _PAST for edge in {*edges(target.config), *widths} if edge + _PAST <= room]
    length = max([min(room, _USUAL), *reached])
    return min(length, switches(target.config)[0]) if target.varies else length, room


def _near(target: Target, model: nn.Module, length: int, seed: int) -> Outcome:
    """Compare one pass, the model's own steps, and windows of ours: three tokens, one, most of them, three.

    Short windows come first, since masks of none are handed over only before the first edge.
    """
    ids = _random_ids(target, length, seed)
    whole = _own(model, ids)
    cuts = [0, 3, 4, length - 3, length]
    steps = _own_steps(model, ids, [0, *range(length - 2, length + 1)])
    if not (error := _apart(target, whole, steps)) <= tolerance(target):
        return error, THEIRS
    return _apart(target, whole, _ours(target, ids, cuts)), OURS


def _ragged(target: Target, length: int, seed: int) -> Outcome:
    """Compare two rows decoded together, the second half as long, with each of them alone."""
    rows = [_random_ids(target, length, seed), _random_ids(target, length // 2, seed + 2)]
    starts = [row.shape[1] - 3 for row in rows]
    cache, geometry = target.new_cache(2, length), target.geometry(length)
    found: list[list[Tensor]] = [[], []]
    for offset, width in ((0, max(starts)), (0, 1), (1, 2)):
        first = not found[0]
        begins = [0, 0] if first else [start + offset for start in starts]
        table = torch.zeros((2, width), dtype=torch.long, device=target.device)
        ends = starts if first else [begin + width for begin in begins]
        for line, row, begin, end in zip(table, rows, begins, ends, strict=True):
            line[: end - begin] = row[0, begin:end]
        window = Window(geometry, begins, width)
        logits = target.logits(target.run(target.embed_at(table, window, cache), window, cache))
        for pieces, line, begin, end in zip(found, logits, begins, ends, strict=True):
            pieces.append(line[None, : end - begin])
    errors = [
        _apart(target, _own(target.model, row), torch.cat(pieces, dim=1))
        for row, pieces in zip(rows, found, strict=True)
    ]
    return _worst(errors), OURS


def _far_trial(target: Target, place: int) -> Callable[[int], Outcome]:
    return lambda seed: _far(target, place, seed)


def _far(target: Target, place: int, seed: int) -> Outcome:
    """Compare steps across position `place` with windows of ours; the cache holds nothing before them."""
    length, origin = _AHEAD + 2, max(0, place - _AHEAD)
    ids = _random_ids(target, length, seed)
    steps = _own_steps(target.model, ids, [0, *range(_AHEAD, length + 1)], origin)
    begin = _AHEAD if target.varies else _AHEAD - 1  # which is a prompt's end, by which such tables are made
    return _apart(target, steps, _ours(target, ids, [0, begin, length], origin)), OURS


def _random_ids(target: Target, length: int, seed: int) -> Tensor:
    draw = torch.Generator("cpu").manual_seed(seed)
    return torch.randint(target.vocab_size, (1, length), generator=draw).to(target.device)


def _own(model: nn.Module, ids: Tensor) -> Tensor:
    found: Tensor = model(input_ids=ids, use_cache=False).logits
    return found


def _own_steps(model: nn.Module, ids: Tensor, cuts: list[int], origin: int | None = None) -> Tensor:
    """Return the logits `(1, T, V)` of the model's own forward with its own cache, cut into passes at `cuts`.

    Positions are handed over as `generate` does, to models that take them: some count from 0 in every pass else.
    """
    name = cache_keyword(cast(Any, model).forward)
    if origin is None and "position_ids" in inspect.signature(cast(Any, model).forward).parameters:
        origin = 0
    more: dict[str, Any] = {}
    found = []
    for first, last in pairwise(cuts):
        if origin is not None:
            more["position_ids"] = torch.arange(origin + first, origin + last, device=ids.device)[None]
        out = model(input_ids=ids[:, first:last], use_cache=True, **more)
        found.append(out.logits)
        more[name] = out[name]
    return torch.cat(found, dim=1)


def _ours(target: Target, ids: Tensor, cuts: list[int], origin: int = 0) -> Tensor:
    """Return the logits `(1, T, V)` of the view, cut into windows at `cuts`."""
    length = ids.shape[1]
    cache, geometry = target.new_cache(1, length), target.geometry(length, origin, cuts[1:2])
    found = []
    for first, last in pairwise(cuts):
        window = Window(geometry, [first], last - first)
        hidden = target.embed_at(ids[:, first:last], window, cache)
        found.append(target.logits(target.run(hidden, window, cache)))
    return torch.cat(found, dim=1)


def _apart(target: Target, expected: Tensor, found: Tensor) -> float:
    """Return how far logits `(1, T, V)` are apart, as a share of the largest one.

    In float32 the worst position counts. In lower precision, where one expert chosen otherwise by rounding changes a
    token and a little of those after it, the median of the first and of the last half does.
    """
    scale = float(expected.float().abs().max()) + 1e-6
    error = (expected.float() - found.float()).abs().amax(dim=-1)[0]
    if torch.finfo(target.dtype).bits < 32:
        halves = error[: error.shape[0] // 2], error[error.shape[0] // 2 :]
        return _worst([float(half.median()) / scale for half in halves])
    return float(error.max()) / scale


def _worst(errors: list[float]) -> float:
    """Return the largest of `errors`, NaN above all."""
    return float(torch.tensor(errors, dtype=torch.float64).max())


def _narrowed(target: Target) -> tuple[Target, nn.Module] | None:
    """Return view and model with windows and chunks narrowed to `_NARROW`, sharing everything; None for wrapped ones.

    A wrapper's forward belongs to the original and would keep its width.
    """
    model: Any = target.model
    path = base_path(model, target.family.parts)
    chain = [model]
    for name in path:
        chain.append(getattr(chain[-1], name))
    if any("forward" in vars(module) for module in chain):
        return None
    narrow = copy.copy(target.config)
    for name in ("sliding_window", "attention_chunk_size"):
        if getattr(narrow, name, None) is not None:
            setattr(narrow, name, _NARROW)
    inner = _shallow(chain[-1], narrow, chain[-1]._modules)
    for module, name in zip(reversed(chain[:-1]), reversed(path), strict=True):
        inner = _shallow(
            module, _with_text(module.config, target.config, narrow), module._modules | {name: inner}
        )
    view = copy.copy(target)
    view.reach = [None if reach is None else _narrow(reach) for reach in target.reach]
    return view, inner


def _narrow(reach: Reach) -> Reach:
    return Chunk(_NARROW) if isinstance(reach, Chunk) else _NARROW


def _with_text(config: Any, text: Any, narrow: Any) -> Any:
    """Return `config` with its text part, or itself where that is what it is, replaced by `narrow`."""
    if config is text:
        return narrow
    changed = copy.copy(config)
    changed.text_config = narrow
    return changed


def _shallow(module: nn.Module, config: Any, children: Any) -> nn.Module:
    found: nn.Module = object.__new__(type(module))
    object.__setattr__(found, "__dict__", {**vars(module), "config": config, "_modules": children})
    return found

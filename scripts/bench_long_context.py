"""Measure decoding at long contexts and real batches; every figure comes from rows that are prefilled once.

python scripts/bench_long_context.py CHECKPOINT [--batches 1 4 8 16] [--contexts 512 2048 8192] [--out table.json]
python scripts/bench_long_context.py CHECKPOINT --batches 1 --contexts 256 --new-tokens 16      a look in seconds

A decoding never changes the slots of its prompt, so all contenders go on from the same cache; only transformers gets
a copy. Time counts from the first token on, and until the slowest row has its tokens: no row ends, the batch stays
whole. Contenders take turns; tokens are compared with plain decoding's.
"""

from __future__ import annotations

import argparse
import inspect
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import ssd_infer
from ssd_infer import drafts
from ssd_infer.drafts.base import DraftParams
from ssd_infer.drafts.sparse_attention import SparseAttention
from ssd_infer.engine.cache import RowCache
from ssd_infer.engine.clock import Clock
from ssd_infer.engine.loop import Decoding
from ssd_infer.engine.sampling import Sampler, SamplingParams
from ssd_infer.engine.session import Row, Session, open_session
from ssd_infer.engine.stats import Stats
from ssd_infer.engine.stopping import StopRule
from ssd_infer.engine.target import Target
from ssd_infer.evaluation.tasks import build_tasks
from ssd_infer.sparse.plain import grouped_layers

console = Console()
ROOM = 64


@dataclass(slots=True)
class Measured:
    """One contender in one cell of the table."""

    name: str
    batch: int
    context: int
    seconds: list[float] = field(default_factory=list)
    emitted: list[int] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)
    alpha: float | None = None
    tau: float | None = None
    note: str = ""
    report: dict[str, Any] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Tokens a second, the median over repeats."""
        return statistics.median(n / s for n, s in zip(self.emitted, self.seconds, strict=True))


class Prefilled:
    """Rows whose prompts are in the cache; opens sessions that go on from there."""

    def __init__(
        self, target: Target, prompts: list[list[int]], new_tokens: int, dtype_room: int = ROOM
    ) -> None:
        """Prefill one row after the other, equal prompts once, so that no batch of activations is ever held."""
        self.target, self.prompts = target, prompts
        self.capacity = max(map(len, prompts)) + 2 * new_tokens + ROOM
        self.cache = target.new_cache(len(prompts), self.capacity)
        self.first: list[int] = []
        for place, prompt in enumerate(prompts):
            twin = prompts.index(prompt)
            if twin < place:
                self.first.append(self.first[twin])
                self._copy(self.cache, twin, place)
                continue
            session = open_session(target, [prompt], 1, 0, _sampler(target))
            session.layers = grouped_layers(session)
            self.first.append(Decoding(session, None, StopRule(), Stats.empty(1))._prefill()[0][0])
            self._copy(session.cache, 0, place)

    def _copy(self, source: RowCache, row: int, place: int) -> None:
        for layer in range(self.target.num_layers):
            held = source.held(layer)
            if self.cache.stored(layer, 1) is None:
                self.cache._allocate(layer, *(part[:1] for part in held))
            for mine, theirs in zip(self.cache.held(layer), held, strict=True):
                end = min(theirs.shape[2], self.capacity)
                mine[place, :, :end] = theirs[row, :, :end]

    def session(self, batch: int) -> Session:
        """Return a session of the first `batch` rows, each with its first token."""
        cache = RowCache(batch, self.capacity, self.target.num_layers)
        for layer in range(self.target.num_layers):
            keys, values = self.cache.held(layer)
            cache._keys[layer], cache._values[layer] = keys[:batch], values[:batch]
        rows = [
            Row(index, [*prompt, token], len(prompt), 1 << 30)
            for index, (prompt, token) in enumerate(zip(self.prompts[:batch], self.first, strict=False))
        ]
        pending = torch.tensor(self.first[:batch], device=self.target.device)
        lengths = [len(prompt) for prompt in self.prompts[:batch]]
        return Session(
            self.target,
            _sampler(self.target),
            self.target.geometry(self.capacity),
            cache,
            rows,
            pending,
            lengths,
        )


def _sampler(target: Target) -> Sampler:
    return Sampler(SamplingParams(), target.device, seed=0)


def ours(
    filled: Prefilled,
    batch: int,
    new_tokens: int,
    params: DraftParams | None,
    into: Measured,
    grouped: bool = True,
) -> None:
    """Decode until every row has `new_tokens`; note seconds from the first token on."""
    session = filled.session(batch)
    stats = Stats.empty(batch)
    session.layers = grouped_layers(session) if grouped else None
    drafter = None if params is None else SparseAttention(session, params)
    kind: type[Decoding] = Decoding if drafter is None else drafter.loop(Decoding)
    decoding, clock = kind(session, drafter, StopRule(), stats), Clock(filled.target.device)
    with torch.inference_mode():
        start = _now(filled.target)
        if drafter is not None:
            drafter.begin()
        while (
            min(counts := [row.emitted for row in session.rows]) <= new_tokens
            and max(counts) <= 2 * new_tokens
        ):
            decoding._round(clock)
        into.seconds.append(_now(filled.target) - start)
    stats.finish()
    into.emitted.append(stats.total.emitted)
    into.tokens = [row.tokens[row.prompt_length :][: new_tokens + 1] for row in session.rows]
    into.alpha, into.tau = stats.total.alpha, stats.total.tau
    if drafter is not None:
        into.report = drafter.report() | {"seconds": clock.seconds()}


def theirs(filled: Prefilled, batch: int, new_tokens: int, into: Measured) -> None:
    """Let transformers' generate go on from a copy of the same cache."""
    from transformers import DynamicCache

    model: Any = filled.target.model
    width = len(filled.prompts[0])
    cache = DynamicCache(config=model.config)
    for layer in range(filled.target.num_layers):
        keys, values = filled.cache.stored(layer, width) or (None, None)
        assert keys is not None
        assert values is not None
        cache.update(keys[:batch].clone(), values[:batch].clone(), layer)
    ids = torch.tensor(
        [[*p, t] for p, t in zip(filled.prompts[:batch], filled.first, strict=False)],
        device=filled.target.device,
    )
    with torch.inference_mode():
        start = _now(filled.target)
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            **{_cache_name(model): cache},
            do_sample=False,
            max_new_tokens=new_tokens,
            min_new_tokens=new_tokens,
            eos_token_id=None,
            pad_token_id=0,
        )
        into.seconds.append(_now(filled.target) - start)
    into.emitted.append(batch * new_tokens)
    into.tokens = out[:, width:].tolist()


def _cache_name(model: Any) -> str:
    """Return what this release of transformers calls the cache argument."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def _now(target: Target) -> float:
    if target.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def cell(filled: Prefilled, batch: int, arguments: argparse.Namespace) -> list[Measured]:
    """Measure every contender at one batch and context, taking turns."""
    context = max(map(len, filled.prompts))
    calls: dict[str, Callable[[Measured], None]] = {
        "plain": lambda into: ours(filled, batch, arguments.new_tokens, None, into)
    }
    if not arguments.no_transformers:
        calls["transformers"] = lambda into: theirs(filled, batch, arguments.new_tokens, into)
    for spec in arguments.draft:
        raw = {
            key: _value(text) for key, _, text in (part.partition("=") for part in spec.split(",") if part)
        }
        strategy = drafts.get("sparse_attention")
        prompts = filled.prompts[:batch]
        resolved = strategy.settle(filled.target, raw, prompts, do_sample=False)
        calls[spec or "auto"] = _draft_call(
            filled, batch, arguments.new_tokens, resolved.params, resolved.note
        )
    found = {name: Measured(name, batch, context) for name in calls}
    for repeat in range(arguments.repeats):
        names = list(calls)
        for name in names[repeat % len(names) :] + names[: repeat % len(names)]:
            calls[name](found[name])
    return list(found.values())


def _draft_call(
    filled: Prefilled, batch: int, new_tokens: int, params: DraftParams | None, note: str
) -> Callable[[Measured], None]:
    def call(into: Measured) -> None:
        into.note = note
        ours(filled, batch, new_tokens, params, into)

    return call


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def show(rows: Sequence[Measured], kv_bytes: int) -> None:
    """Print one table row a contender, speedups against plain."""
    table = Table(
        "batch", "context", "contender", "tok/s", "× plain", "× HF", "α", "τ", "KV MB/token", "same", "note"
    )
    for row in rows:
        peers = {
            other.name: other for other in rows if (other.batch, other.context) == (row.batch, row.context)
        }
        plain = peers["plain"]
        hf = peers.get("transformers")
        read = row.report.get("kv_bytes_per_token") or row.context * kv_bytes
        pairs = zip(row.tokens, plain.tokens, strict=True)
        same = sum(a[: len(b)] == b[: len(a)] for a, b in pairs)
        table.add_row(
            str(row.batch),
            str(row.context),
            row.name,
            f"{row.rate:.2f}",
            f"{row.rate / plain.rate:.2f}",
            f"{row.rate / hf.rate:.2f}" if hf else "",
            "" if row.alpha is None else f"{row.alpha:.2f}",
            "" if row.tau is None else f"{row.tau:.2f}",
            f"{read / 1e6:.1f}",
            f"{same}/{row.batch}",
            row.note,
        )
    console.print(table)


def main() -> None:
    """Fill the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--contexts", type=int, nargs="+", default=[512, 2048, 8192])
    parser.add_argument(
        "--draft", nargs="+", default=[""], help="settings like selector=pillar,ratio=0.05,gamma=8"
    )
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--distinct", type=int, default=4, help="different prompts; further rows repeat them")
    parser.add_argument("--task", default="long_continuation")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--no-transformers", action="store_true")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    loaded = ssd_infer.load(arguments.checkpoint, dtype=arguments.dtype, device=arguments.device)
    target = Target.of(loaded.model)
    rows: list[Measured] = []
    for context in arguments.contexts:
        distinct = min(arguments.distinct, max(arguments.batches))
        prompts = build_tasks([arguments.task], loaded.tokenizer, distinct, context, seed=0)[0].prompts
        with torch.inference_mode():
            filled = Prefilled(
                target, [prompts[i % distinct] for i in range(max(arguments.batches))], arguments.new_tokens
            )
        kv_bytes = filled.cache.nbytes() // (len(filled.prompts) * filled.capacity)
        for batch in arguments.batches:
            rows += cell(filled, batch, arguments)
            show([row for row in rows if (row.batch, row.context) == (batch, context)], kv_bytes)
        if arguments.out is not None:
            arguments.out.write_text(json.dumps([asdict(row) | {"rate": row.rate} for row in rows], indent=1))


if __name__ == "__main__":
    main()

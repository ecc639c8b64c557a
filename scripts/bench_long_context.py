"""Measure decoding at long contexts and real batches; every figure comes from rows that are prefilled once.

python scripts/bench_long_context.py CHECKPOINT [--batches 1 4 8 16] [--contexts 512 2048 8192] [--out table.json]
python scripts/bench_long_context.py CHECKPOINT --batches 1 --contexts 256 --new-tokens 16      a look in seconds

All contenders go on from the same cache; only transformers gets a copy. `--keep DIR` leaves the prefilled rows there,
so that later runs start at once. `--out` is extended, cell by cell: a cell measured again replaces the earlier one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import ssd_infer
from ssd_infer.cli.console import print_error
from ssd_infer.config.evaluation import DTYPES, TASKS
from ssd_infer.corpus import build_tasks
from ssd_infer.engine.prefilled import FilledRow, Prefilled, prefill_once
from ssd_infer.engine.target import Target
from ssd_infer.errors import ConfigError, SSDError
from ssd_infer.evaluation.strategies import as_dict
from ssd_infer.jsonio import from_json, to_json
from ssd_infer.report.format import bytes_text, number, times
from ssd_infer.strategies import registry as drafts
from ssd_infer.tuning.cell import Way, measure_cell, room_for
from ssd_infer.tuning.cell_report import cell_report
from ssd_infer.tuning.memo import apart

DRAFT = "sparse_attention"
console = Console(width=170)


def read_draft(spec: str) -> tuple[str, dict[str, Any]]:
    """Read `early_exit`, `ngram:gamma=5`, or settings of sparse attention; what is left out is automatic."""
    name, colon, settings = spec.partition(":")
    if not colon:
        name, settings = (DRAFT, spec) if "=" in spec or not spec else (spec, "")
    pairs = (part.partition("=") for part in settings.split(",") if part)
    return name, {key: _value(text) for key, _, text in pairs}


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _spec(text: str) -> str:
    """Check settings of a draft, which needs no model, before one loads."""
    try:
        name, params = read_draft(text)
        drafts.get(name).parse(params, None)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be >= 1 (got {value}); try 1")
    return value


def _task(text: str) -> str:
    if text not in TASKS and not text.startswith("file:"):
        raise argparse.ArgumentTypeError(f"is no task (got {text!r}); one of {', '.join(TASKS)}, file:PATH")
    return text


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Print one table row a contender."""
    table = Table(
        *(
            "batch",
            "context",
            "contender",
            "tok/s",
            "× plain",
            "× HF",
            "speedup",
            "α",
            "τ",
            "v",
            "KV read/token",
        ),
        *("peak", "same", "note"),
    )
    for row in rows:
        table.add_row(
            str(row["batch"]),
            str(row["context"]),
            row["name"],
            number(row["tokens_per_second"]),
            times(row["over_plain"]),
            times(row["over_transformers"]),
            times(row["speedup"]),
            number(row["alpha"]),
            number(row["tau"]),
            number(row["verify_ratio"]),
            bytes_text(round(row["kv_bytes_per_token"])),
            bytes_text(row["peak_bytes"]),
            f"{row['equal']}/{row['batch']}",
            row["note"],
        )
    console.print(table)


def keep(rows: list[dict[str, Any]], file: Path) -> None:
    """Add the rows of one cell to the JSON list in `file`."""
    known = from_json(file.read_text()) if file.exists() else []
    cells = {(row["batch"], row["context"], row["name"]) for row in rows}
    known = [row for row in known if (row["batch"], row["context"], row["name"]) not in cells]
    file.write_text(to_json(known + rows, indent=1))


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint")
    parser.add_argument("--batches", type=_count, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--contexts", type=_count, nargs="+", default=[512, 2048, 8192])
    parser.add_argument(
        "--draft",
        type=_spec,
        nargs="*",
        default=[""],
        help="drafts like early_exit or ngram:gamma=5; settings alone, like ratio=0.05,gamma=8, are sparse_attention's",
    )
    parser.add_argument("--new-tokens", type=_count, default=48)
    parser.add_argument("--repeats", type=_count, default=3)
    parser.add_argument(
        "--distinct", type=_count, default=4, help="different prompts; further rows repeat them"
    )
    parser.add_argument("--task", type=_task, default="long_continuation")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--their-tokens", type=int, help="tokens transformers decodes a row; 0 leaves it out")
    parser.add_argument("--keep", type=Path, help="folder for prefilled rows")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def main() -> int:
    """Fill the table; return 2 for an error made on purpose."""
    arguments = parse()
    try:
        fill(arguments)
    except SSDError as error:
        print_error(error)
        return 2
    return 0


def fill(arguments: argparse.Namespace) -> None:
    """Measure every cell."""
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        keep([], arguments.out)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    loaded = ssd_infer.load(arguments.checkpoint, dtype=arguments.dtype, device=arguments.device)
    target = Target.of(loaded.model)
    for context in arguments.contexts:
        count = min(arguments.distinct, max(arguments.batches))
        prompts = build_tasks([arguments.task], loaded.tokenizer, count, context, seed=0)[0].prompts
        filled_rows = [prefill_once(target, prompt, arguments.keep) for prompt in prompts]
        with apart():
            for batch in arguments.batches:
                rows = measure(arguments, target, filled_rows, batch)
                show(rows)
                if arguments.out is not None:
                    keep(rows, arguments.out)


def measure(
    arguments: argparse.Namespace, target: Target, rows: Sequence[FilledRow], batch: int
) -> list[dict[str, Any]]:
    """Measure one cell; automatic settings are those of its batch and context."""
    prompts = [rows[place % len(rows)].prompt for place in range(batch)]
    ways = [_way(spec, target, prompts) for spec in arguments.draft]
    filled = Prefilled(target, rows, batch, arguments.new_tokens, room_for(ways))
    cell = measure_cell(filled, ways, arguments.new_tokens, arguments.repeats, arguments.their_tokens)
    return cell_report(cell, filled.slot_bytes, torch.finfo(target.dtype).bits >= 32)


def _way(spec: str, target: Target, prompts: list[list[int]]) -> Way:
    name, params = read_draft(spec)
    strategy = drafts.get(name)
    resolved = strategy.prepare(target, params, prompts, do_sample=False)
    if resolved.params is None:
        return Way(spec or "auto", note=resolved.note)
    shown = as_dict(resolved.params)
    return Way(spec or "auto", strategy, resolved.params, shown, resolved.note)


if __name__ == "__main__":
    sys.exit(main())

"""Measure decoding with experts on disk: plain against drafts with experts at hand, same store, cache and prompts.

python scripts/bench_experts.py CHECKPOINT [--budgets 0.25 0.5] [--prompts 12] [--new-tokens 96] [--out table.json]
python scripts/bench_experts.py CHECKPOINT --against TWIN     acceptance and U(T) of a model not trained for it
python scripts/bench_experts.py CHECKPOINT --memory           peak memory, watched from outside the process

Contenders take turns on every prompt, each with a resident set of its own. Reads go past the page cache; that they
did is checked twice: the kernel counts what came from the disk (`/proc/self/io`), and no page of the store may be
cached afterwards (`mincore`).
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import ssd_infer
from ssd_infer.checkpoint.load import Loaded
from ssd_infer.corpus import build_tasks
from ssd_infer.engine.target import Target
from ssd_infer.evaluation.bootstrap import Ratio, Totals, speed_ratio
from ssd_infer.evaluation.repetition import repetition
from ssd_infer.jsonio import to_json
from ssd_infer.offload.files import EXPERTS, read_index
from ssd_infer.offload.offload import FOLDER, load_offloaded, make_store, resident_of
from ssd_infer.offload.resident import ResidentSet
from ssd_infer.strategies.reduced_experts.expert_calibration import make_profile
from ssd_infer.strategies.reduced_experts.expert_params import ReducedExpertsParams

console = Console(width=140)
PLAIN = ("lru", "lfu")
DRAFT_POLICY = "ahead"
AUTO = ("lossless", "lossless, draft may read", "adaptive")


@dataclass(slots=True)
class Runner:
    """One way to decode, with a model and a resident set of its own."""

    name: str
    loaded: Loaded
    resident: ResidentSet
    draft: str | None = None
    params: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    do_sample: bool = False
    totals: list[Totals] = field(default_factory=list)
    texts: list[list[int]] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0
    rounds: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    skipped: dict[str, float] = field(default_factory=dict)

    def run(self, prompt: list[int], new_tokens: int) -> None:
        """Decode one prompt and add up."""
        start = time.perf_counter()
        out = ssd_infer.generate(
            self.loaded,
            [prompt],
            draft=self.draft,
            draft_params=self.params if self.draft else None,
            max_new_tokens=new_tokens,
            do_sample=self.do_sample,
            seed=len(self.totals),
        )
        spent = time.perf_counter() - start
        total = out.stats.total
        self.totals.append(Totals(total.emitted, spent))
        self.texts.append(out.sequences[0])
        self.drafted += total.drafted
        self.accepted += total.accepted
        self.rounds += total.rounds
        for part, seconds in total.seconds.items():
            self.seconds[part] = self.seconds.get(part, 0.0) + seconds
        for name in ("skipped", "emitted"):
            self.skipped[name] = self.skipped.get(name, 0) + out.stats.report.get(name, 0)
        agreed = out.stats.report.get("agreement")
        if agreed is not None:
            count = out.stats.report["skipped"]
            self.skipped["agreed"] = self.skipped.get("agreed", 0.0) + agreed * count
            self.skipped["kl"] = self.skipped.get("kl", 0.0) + out.stats.report["kl"] * count

    @property
    def tokens(self) -> int:
        """Tokens emitted."""
        return sum(part.tokens for part in self.totals)

    @property
    def rate(self) -> float:
        """Tokens a second, prefill included."""
        return self.tokens / sum(part.seconds for part in self.totals)


def resolved(runner: Runner, prompts: list[list[int]]) -> Runner:
    """Calibrate a drafting runner on prompts that are not measured."""
    if runner.draft is None:
        return runner
    out = ssd_infer.generate(
        runner.loaded,
        prompts,
        draft=runner.draft,
        draft_params=runner.params,
        max_new_tokens=1,
        do_sample=runner.do_sample,
    )
    runner.note = out.note
    if out.draft is None:
        runner.draft, runner.params = None, {}
    else:
        runner.params = out.draft_params
    return runner


def select_candidates(
    args: argparse.Namespace, store: Path, budget: float, calibration: list[list[int]], given: dict[str, Any]
) -> list[Runner]:
    """Open every contender at one budget and settle its parameters, but for those that are `given`."""
    kinds: list[tuple[str, str | None, str, dict[str, Any]]] = [
        *((f"plain {policy}", None, policy, {}) for policy in PLAIN),
        (AUTO[0], "reduced_experts", DRAFT_POLICY, {}),
        (AUTO[1], "reduced_experts", DRAFT_POLICY, {"at_hand": False}),
        (AUTO[2], "reduced_experts+adaptive", DRAFT_POLICY, {}),
    ]
    if args.only:
        kinds = [kind for kind in kinds if kind[1] is None or kind[0] in args.only]
    if args.by_hand:
        kinds = kinds[: len(PLAIN)]
        kinds += [(text, *_by_hand(text)) for text in args.by_hand]
    runners = []
    for name, draft, policy, params in kinds:
        loaded = load_offloaded(args.checkpoint, budget, store=store, policy=policy, trace=True)
        resident = resident_of(Target.of(loaded.model).layers)
        assert resident is not None
        runners.append(
            resolved(
                Runner(name, loaded, resident, draft, given | params if draft else {}, do_sample=args.sample),
                calibration,
            )
        )
        console.print(f"{name}: {runners[-1].note or 'plain'}", style="dim")
    return runners


def _by_hand(text: str) -> tuple[str, str, dict[str, Any]]:
    """Return draft, policy and parameters of `k_draft=1,gamma=6`; with `tau_accept` it is the adaptive mode."""
    params = {name: json.loads(value) for name, value in (part.split("=") for part in text.split(","))}
    return "reduced_experts" + "+adaptive" * ("tau_accept" in params), DRAFT_POLICY, params


def compare(runners: list[Runner], prompts: list[list[int]], new_tokens: int) -> list[dict[str, Any]]:
    """Decode all prompts with all runners in turns; return one row each, speeds against the fastest plain one."""
    for runner in runners:
        runner.run(prompts[0], 16)
        for name in ("totals", "texts", "seconds", "skipped"):
            getattr(runner, name).clear()
        runner.drafted = runner.accepted = runner.rounds = 0
        runner.resident.reset_counters()
    for turn, prompt in enumerate(prompts):
        start = turn % len(runners)
        for runner in runners[start:] + runners[:start]:
            runner.run(prompt, new_tokens)
    best = max(
        (runner for runner in runners if runner.name.startswith("plain")), key=lambda runner: runner.rate
    )
    return [row(runner, best) for runner in runners]


def row(runner: Runner, best: Runner) -> dict[str, Any]:
    """Return the figures of one runner."""
    ratio: Ratio = speed_ratio(runner.totals, best.totals)
    resident = runner.resident
    experts = resident.counters.report(runner.tokens, resident.store.expert_bytes)
    experts |= resident.counters.bound(resident.capacity)
    skipped = runner.skipped.get("skipped", 0)
    return {
        "name": runner.name,
        "params": runner.params,
        "note": runner.note,
        "tokens_per_second": runner.rate,
        "speedup": ratio.value,
        "ci95": ratio.ci95,
        "against": best.name,
        "equal": sum(a == b for a, b in zip(runner.texts, best.texts, strict=True)),
        "outputs": len(runner.texts),
        "alpha": runner.accepted / runner.drafted if runner.drafted else None,
        "tau": runner.accepted / runner.rounds + 1 if runner.rounds else None,
        "seconds": runner.seconds,
        "experts": experts,
        "repetition": repetition(runner.texts),
        "skipped_share": skipped / runner.skipped["emitted"] if skipped else None,
        "disagreement": (skipped - runner.skipped["agreed"]) / runner.skipped["emitted"] if skipped else None,
        "kl": runner.skipped["kl"] / skipped if skipped else None,
    }


def show(budget: float, rows: list[dict[str, Any]]) -> None:
    """Print one budget's rows."""
    table = Table(title=f"budget {budget:.0%} of the expert bytes")
    columns = (
        "tok/s",
        "speedup",
        "95 %",
        "α",
        "τ",
        "MiB/token",
        "hit",
        "stall ms/token",
        "wasted",
        "equal",
        "wrong",
    )
    for name in ("", *columns):
        table.add_column(name, justify="left" if not name else "right")
    for found in rows:
        experts = found["experts"]
        table.add_row(
            found["name"],
            f"{found['tokens_per_second']:.1f}",
            f"{found['speedup']:.2f}×",
            "–".join(f"{bound:.2f}" for bound in found["ci95"] or []),
            _figure(found["alpha"]),
            _figure(found["tau"]),
            f"{experts['bytes_per_token'] / 2**20:.2f}",
            _figure(experts["hit_rate"]),
            f"{1e3 * experts['stall_seconds_per_token']:.2f}",
            f"{experts['wasted']}/{experts['ahead']}",
            f"{found['equal']}/{found['outputs']}",
            "" if found["disagreement"] is None else f"{found['disagreement']:.2%}",
        )
    console.print(table)


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def cached_pages(path: Path) -> int:
    """Return how many pages of `path` are in the page cache."""
    size = path.stat().st_size
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as view:
        held = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
        address = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(view)))
        if libc.mincore(address, ctypes.c_size_t(size), held):
            raise OSError(ctypes.get_errno(), "mincore failed")
        pages = sum(flag & 1 for flag in held)
        del address
    return pages


def read_bytes() -> int:
    """Return the bytes this process has fetched from storage."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["read_bytes"])


def acceptance(checkpoint: str, prompts: list[list[int]], new_tokens: int, gamma: int = 4) -> dict[str, Any]:
    """Return acceptance at top-1, half and all of k with every expert in memory, and U(T)."""
    loaded = ssd_infer.load(checkpoint, dtype="float32")
    target = Target.of(loaded.model)
    top_k = int(target.config.num_experts_per_tok)
    found: dict[str, Any] = {"checkpoint": checkpoint, "gamma": gamma}
    plain = ssd_infer.generate(loaded, prompts, max_new_tokens=new_tokens).sequences
    for k_draft in sorted({1, top_k // 2, top_k}):
        params = {"k_draft": k_draft, "gamma": gamma}
        out = ssd_infer.generate(
            loaded, prompts, draft="reduced_experts", draft_params=params, max_new_tokens=new_tokens
        )
        total = out.stats.total
        found[f"k{k_draft}"] = {"alpha": total.alpha, "tau": total.tau, "equal": out.sequences == plain}
    params_of = ReducedExpertsParams(k_draft=top_k, gamma=gamma, at_hand=False)
    profile = make_profile(target, params_of, prompts, do_sample=False)
    found["union"] = profile.unions
    found["repetition"] = repetition(plain)
    return found


def least_budget(checkpoint: str, store: Path) -> float:
    """Return the share of all expert bytes that the experts of one token in one layer are."""
    from transformers import AutoConfig

    return float(AutoConfig.from_pretrained(checkpoint).num_experts_per_tok / len(read_index(store).extents))


def watch_memory(checkpoint: str, store: Path, budgets: list[float]) -> list[dict[str, Any]]:
    """Decode in one child process a budget; read its peak resident memory from outside, before it ends."""
    found = []
    for budget in budgets:
        command = [sys.executable, __file__, checkpoint, "--store", str(store), "--child", str(budget)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            assert child.stdin is not None
            said = json.loads(child.stdout.readline())
            status = Path(f"/proc/{child.pid}/status").read_text()
            peak = next(
                int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM")
            )
            child.stdin.close()
        found.append({"budget": budget, "budget_bytes": said["budget_bytes"], "peak_bytes": peak})
    least = found[0]
    for entry in found[1:]:
        entry["grown"] = entry["peak_bytes"] - least["peak_bytes"]
        entry["allowed"] = entry["budget_bytes"] - least["budget_bytes"]
    return found


def child(checkpoint: str, store: Path, budget: float) -> None:
    """Decode with a budget, say so, and wait to be looked at."""
    loaded = load_offloaded(checkpoint, budget, store=store)
    resident = resident_of(Target.of(loaded.model).layers)
    assert resident is not None
    params = {"k_draft": 2, "gamma": 8}
    ssd_infer.generate(
        loaded, [[5, 6, 7, 8]], draft="reduced_experts", draft_params=params, max_new_tokens=200
    )
    sys.stdout.write(to_json({"budget_bytes": resident.budget_bytes}) + "\n")
    sys.stdout.flush()
    sys.stdin.read()


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint")
    parser.add_argument("--store", type=Path, help="directory of the expert store; made if it is missing")
    parser.add_argument("--budgets", type=float, nargs="+", default=[0.25, 0.5])
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--prompt-tokens", type=int, default=48)
    parser.add_argument("--new-tokens", type=int, default=96)
    parser.add_argument("--k-draft", type=int, help="experts a drafted token; calibrated if left out")
    parser.add_argument("--gamma", type=int, help="drafts a round; calibrated if left out")
    parser.add_argument("--sample", action="store_true", help="sample at temperature 1 instead of greedily")
    parser.add_argument(
        "--by-hand", nargs="+", help="settings instead of automatic ones, each like k_draft=1,gamma=6"
    )
    parser.add_argument("--only", nargs="+", choices=AUTO, help="automatic rows to measure; all if left out")
    parser.add_argument("--against", help="a second checkpoint: compare acceptance and U(T) only")
    parser.add_argument("--memory", action="store_true", help="measure peak memory only")
    parser.add_argument("--child", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def main() -> None:
    """Measure what was asked for, print it, and write it down."""
    args = arguments()
    store: Path = args.store or Path(args.checkpoint) / FOLDER
    if args.child is not None:
        child(args.checkpoint, store, args.child)
        return
    if not (store / EXPERTS).exists() and args.against is None:
        make_store(args.checkpoint, store)
    result: dict[str, Any] = {"checkpoint": args.checkpoint, "threads": torch.get_num_threads()}
    if args.memory:
        budgets = [least_budget(args.checkpoint, store), *args.budgets, 1.0]
        result["memory"] = watch_memory(args.checkpoint, store, budgets)
        console.print_json(data=result)
    else:
        tokenizer = ssd_infer.load(args.checkpoint).tokenizer
        tasks = build_tasks(["auto"], tokenizer, args.prompts, args.prompt_tokens, seed=0)
        every = [prompt for pair in zip(*(task.prompts for task in tasks), strict=True) for prompt in pair]
        prompts, calibration = every[: args.prompts], every[args.prompts : args.prompts + 6]
        if args.against is not None:
            result["acceptance"] = [
                acceptance(name, prompts, args.new_tokens) for name in (args.checkpoint, args.against)
            ]
            console.print_json(data=result)
        else:
            result["budgets"] = [
                one_budget(args, store, share, prompts, calibration) for share in args.budgets
            ]
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(to_json(result, indent=1), encoding="utf-8")


def one_budget(
    args: argparse.Namespace,
    store: Path,
    budget: float,
    prompts: list[list[int]],
    calibration: list[list[int]],
) -> dict[str, Any]:
    """Compare everything at one budget, and check that the disk was really read."""
    file = os.open(store / EXPERTS, os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)
    given = {"k_draft": args.k_draft, "gamma": args.gamma}
    given = {name: value for name, value in given.items() if value is not None}
    runners = select_candidates(args, store, budget, calibration, given)
    before = read_bytes()
    rows = compare(runners, prompts, args.new_tokens)
    fetched = read_bytes() - before
    show(budget, rows)
    check = {
        "fetched_from_disk": fetched,
        "counted": sum(found["experts"]["bytes"] for found in rows),
        "cached_pages": cached_pages(store / EXPERTS),
    }
    console.print(check)
    return {"budget": budget, "rows": rows, "check": check}


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Search which sublayers of a checkpoint its draft should skip, and save the answer beside it.

    python scripts/search_skip_set.py CHECKPOINT [method=dp|bayes|both] [seconds=60] [key=value …]

The result goes to CHECKPOINT/ssd_skip_set.json, where draft=skip_set finds it on this kind of machine.

    method=dp            dynamic programming over sublayers, seconds; bayes: Bayesian optimisation (Draft & Verify);
                         both: one after the other on the same text and costs, compared
    seconds=60           time limit of bayes                trials=1000          its limit in trials
    objective=predicted  or measured: tokens per second of real decoding (bayes)
    sampling=false       true searches for temperature 1    tasks=auto           prompts, as in python -m ssd_infer
    prompts=8            how many                           prompt_tokens=64     how long
    dtype=float32  device=auto  threads=0  seed=0  save=true
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table

from ssd_infer.cli.console import print_error
from ssd_infer.config.checks import suggest
from ssd_infer.errors import ConfigError, Problem, SSDError
from ssd_infer.strategies.skip_layers.bayes import Progress, Watch
from ssd_infer.strategies.skip_layers.search_result import SearchResult


@dataclass(slots=True)
class Options:
    """What the command line may set."""

    checkpoint: str = ""
    method: str = "dp"
    seconds: float = 60.0
    trials: int = 1000
    objective: str = "predicted"
    sampling: bool = False
    tasks: str = "auto"
    prompts: int = 8
    prompt_tokens: int = 64
    dtype: str = "float32"
    device: str = "auto"
    threads: int = 0
    seed: int = 0
    save: bool = True


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or arguments[0].startswith("-"):
        print(__doc__)
        return 0 if arguments[:1] == ["--help"] else 2
    try:
        options = parse(arguments)
        results = run(options)
    except SSDError as error:
        print_error(error)
        return 2
    for found in results:
        show(found, options)
    if len(results) == 2:
        compare(*results)
    return 0


def parse(arguments: list[str]) -> Options:
    """Read `CHECKPOINT key=value …`; raises ConfigError with all problems together."""
    options, problems = Options(checkpoint=arguments[0]), []
    known = {field.name: field.default for field in fields(Options) if field.name != "checkpoint"}
    for argument in arguments[1:]:
        key, _, text = argument.partition("=")
        if key not in known:
            problems.append(Problem(key, "is no setting of this command", text, suggest(key, list(known))))
            continue
        try:
            setattr(options, key, _read(text, type(known[key])))
        except ValueError:
            problems.append(Problem(key, f"must be {type(known[key]).__name__}", text))
    for key, choices in (("method", ("dp", "bayes", "both")), ("objective", ("predicted", "measured"))):
        if getattr(options, key) not in choices:
            problems.append(Problem(key, f"must be {' or '.join(choices)}", getattr(options, key)))
    problems += [
        Problem(key, "must be >= 1", getattr(options, key))
        for key in ("trials", "prompts", "prompt_tokens")
        if getattr(options, key) < 1
    ]
    if not options.seconds > 0:
        problems.append(Problem("seconds", "must be > 0", options.seconds, "try 60"))
    if problems:
        raise ConfigError(problems)
    return options


def check_place(options: Options) -> None:
    """Raise ConfigError when the result could not be saved beside the checkpoint, before anything is loaded."""
    folder = Path(options.checkpoint)
    if options.save and not os.access(folder, os.W_OK):
        reason = "it is read-only" if folder.is_dir() else "it is no folder here"
        rule = f"cannot put the result beside {options.checkpoint}: {reason}"
        raise ConfigError([Problem("save", rule, options.save, "save=false only shows the result")])


def _read(text: str, kind: type) -> object:
    if kind is bool:
        return {"true": True, "false": False}[text.lower()] if text.lower() in ("true", "false") else int("?")
    return kind(text)


def run(options: Options) -> list[SearchResult]:
    """Load the checkpoint, search, save."""
    import ssd_infer
    from ssd_infer.corpus import build_tasks, calibration_prompts
    from ssd_infer.engine.sublayers import unsupported_reason
    from ssd_infer.engine.target import Target
    from ssd_infer.errors import UnsupportedModelError
    from ssd_infer.evaluation.bench import torch_threads
    from ssd_infer.evaluation.progress import quiet_libraries
    from ssd_infer.strategies.skip_layers.offline_search import prepare, search

    check_place(options)
    with torch_threads(options.threads), quiet_libraries(), progress(options) as (say, watch):
        say("loading the checkpoint")
        loaded = ssd_infer.load(options.checkpoint, dtype=options.dtype, device=options.device)
        target = Target.of(loaded.model)
        reason = unsupported_reason(target)
        if reason is not None:
            raise UnsupportedModelError(f"skip_set does not apply to {options.checkpoint}: {reason}")
        tasks = build_tasks(
            options.tasks.split(","), loaded.tokenizer, options.prompts, options.prompt_tokens, options.seed
        )
        prompts = calibration_prompts(tasks, loaded.tokenizer, options.prompts, options.prompt_tokens)
        ground = prepare(target, prompts, options.sampling, say)
        return [
            search(
                target,
                prompts,
                method,
                options.seconds,
                options.trials,
                options.sampling,
                options.objective == "measured",
                options.seed,
                Path(options.checkpoint) if options.save else None,
                watch,
                say,
                ground,
            )
            for method in (("dp", "bayes") if options.method == "both" else (options.method,))
        ]


@contextmanager
def progress(options: Options) -> Iterator[tuple[Callable[[str], None], Watch]]:
    """Show what is being done, and of a Bayesian search its trials, time and best prediction, on the error stream."""
    console = Console(stderr=True, highlight=False)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[best]}"),
    )
    with Bar(*columns, console=console, disable=not console.is_terminal) as bar:
        line = bar.add_task("starting", total=options.seconds if options.method == "bayes" else None, best="")

        def say(text: str) -> None:
            bar.update(line, description=text)
            if not console.is_terminal:
                console.print(text)

        def watch(step: Progress) -> None:
            best = f"trial {step.trials}: {step.best.describe()}"
            bar.update(line, completed=min(step.seconds, options.seconds), best=best)
            if not console.is_terminal and step.trials % 25 == 0:
                console.print(f"[{step.seconds:5.0f} s] {best}")

        yield say, watch


def show(found: SearchResult, options: Options) -> None:
    """Print the result."""
    table = Table(title=f"Skip set of {options.checkpoint}", show_header=False)
    prediction = found.prediction
    rows = {
        "method": f"{found.method}, {found.trials} candidates in {found.seconds:.1f} s",
        "skip_attention": str(sorted(found.skips.attention)),
        "skip_mlp": str(sorted(found.skips.mlp)),
        "γ, threshold": f"{prediction.gamma}, {prediction.confidence:g}",
        "acceptance α": f"{prediction.alpha:.3f} of {prediction.drafted:.2f} drafts a round",
        "draft cost c": f"{prediction.c:.3f} of a plain step",
        "verify cost": f"{prediction.verify_ratio:.3f} of a plain step",
        "predicted speedup": f"{prediction.speedup:.3f}"
        + ("" if prediction.speedup > 1 else "  (draft=skip_set will decode plainly)"),
    }
    for name, value in rows.items():
        table.add_row(name, value)
    Console(highlight=False).print(table)


def compare(dp: SearchResult, bayes: SearchResult) -> None:
    """Print what dynamic programming gets of the Bayesian optimum, and in which share of its time."""
    worth = dp.prediction.speedup / bayes.prediction.speedup
    time = dp.seconds / bayes.seconds
    Console(highlight=False).print(
        f"dp: {100 * worth:.1f} % of the predicted speedup of bayes in {100 * time:.1f} % of its time "
        f"({dp.seconds:.1f} s of {bayes.seconds:.1f} s)"
    )


if __name__ == "__main__":
    sys.exit(main())

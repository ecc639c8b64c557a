"""Measure the engine and the training step; every figure is a ratio of calls interleaved in one run.

python scripts/bench.py decode CHECKPOINT [--exit E] [--gamma G]   our loops against transformers' generate
python scripts/bench.py train [key=value ...]                      step time of the recipe against plain training
python scripts/bench.py loss                                       peak memory of the chunked loss
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import ssd_infer
from ssd_infer.cli.console import print_error
from ssd_infer.errors import SSDError

console = Console()
Call = Callable[[], Any]


def interleaved(calls: Mapping[str, Call], repeats: int) -> dict[str, list[float]]:
    """Return seconds of each call, `repeats` times, in rotating order after one warm-up."""
    names = list(calls)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for repeat in range(-1, repeats):
        for name in names[repeat % len(names) :] + names[: repeat % len(names)]:
            start = time.perf_counter()
            calls[name]()
            if repeat >= 0:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def show(
    title: str, seconds: dict[str, list[float]], units: dict[str, float], against: dict[str, str]
) -> None:
    """Print medians per unit and the median of pairwise ratios."""
    table = Table("what", "ms per unit", "faster than", "ratio", "quartiles", title=title)
    for name, spent in seconds.items():
        other = against.get(name)
        row = [name, f"{statistics.median(spent) / units[name] * 1e3:.3f}"]
        if other is None:
            table.add_row(*row)
            continue
        scale = units[name] / units[other]
        ratios = sorted(theirs / mine * scale for mine, theirs in zip(spent, seconds[other], strict=True))
        low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
        table.add_row(*row, other, f"{statistics.median(ratios):.3f}", f"{low:.3f}…{high:.3f}")
    console.print(table)


def bench_decode(arguments: argparse.Namespace) -> None:
    """Compare plain and early-exit decoding with transformers' own, at the same exit on the same prompts."""
    from ssd_infer.corpus import build_tasks

    loaded = ssd_infer.load(arguments.checkpoint, dtype="float32", device="cpu")
    tasks = build_tasks(["auto"], loaded.tokenizer, arguments.prompts, prompt_tokens=64, seed=0)
    prompts = [torch.tensor([prompt]) for task in tasks for prompt in task.prompts]
    new = arguments.new_tokens
    draft = {"exit_layer": arguments.exit, "gamma": arguments.gamma}

    def theirs(**options: Any) -> Call:
        def call() -> list[list[int]]:
            settings = {
                "do_sample": False,
                "max_new_tokens": new,
                "eos_token_id": None,
                "pad_token_id": 0,
                **options,
            }
            return [
                loaded.model.generate(ids, attention_mask=torch.ones_like(ids), **settings)[0].tolist()
                for ids in prompts
            ]

        return call

    def ours(**options: Any) -> Call:
        def call() -> list[list[int]]:
            outs = [
                ssd_infer.generate(loaded, ids, max_new_tokens=new, eos_token_id=[], **options)
                for ids in prompts
            ]
            return [ids[0].tolist() + out.sequences[0] for ids, out in zip(prompts, outs, strict=True)]

        return call

    calls = {
        "transformers generate": theirs(),
        "ours, plain": ours(),
        f"assistant_early_exit={arguments.exit}": theirs(assistant_early_exit=arguments.exit),
        f"ours, early_exit {arguments.exit} γ{arguments.gamma}": ours(draft="early_exit", draft_params=draft),
    }
    expected, plain, assisted, drafted = [call() for call in calls.values()]
    console.print(
        f"token-identical to generate: plain {plain == expected}, assisted {assisted == expected}, "
        f"early_exit {drafted == expected}"
    )
    names = list(calls)
    against = {names[1]: names[0], names[3]: names[2]}
    seconds = interleaved(calls, arguments.repeats)
    show(
        f"{len(prompts)} prompts × {new} tokens, {torch.get_num_threads()} threads",
        seconds,
        dict.fromkeys(names, len(prompts) * new),
        against,
    )


def bench_train(arguments: argparse.Namespace) -> None:
    """Time forward and backward (plain, the recipe, and without layer dropout) and Muon's step beside them."""
    from transformers import AutoModelForCausalLM

    from ssd_train.cli.load import load_config
    from ssd_train.losses.products import use_fast_products
    from ssd_train.models import build as models
    from ssd_train.recipes import registry as recipes
    from ssd_train.recipes.base import StepContext
    from ssd_train.trainer.optimizers import build_muon

    overrides = arguments.overrides
    variants = {
        "plain": load_config(["+recipe=plain", *overrides]),
        "layerskip": load_config(["+recipe=layerskip", *overrides]),
        "layerskip, no layer dropout": load_config(
            ["+recipe=layerskip", "recipe.layer_dropout.enabled=false", *overrides]
        ),
        "layerskip, p_max 0.2": load_config(
            [
                "+recipe=layerskip",
                "recipe.layer_dropout.enabled=true",
                "recipe.layer_dropout.p_max=0.2",
                "recipe.layer_dropout.time_scale=const",
                *overrides,
            ]
        ),
    }
    cfg = variants["layerskip"]
    model = AutoModelForCausalLM.from_config(models.model_config(cfg.model)).train()
    use_fast_products(model)
    ids = torch.randint(3, cfg.data.tokenizer_vocab, (cfg.train.batch_size, cfg.data.block_size))

    def step(recipe: Any) -> Call:
        counter = iter(range(10**9))

        def call() -> None:
            context = StepContext(next(counter) % cfg.train.max_steps, cfg.train.max_steps, seed=0)
            out = recipe.step(model, {"input_ids": ids}, context)
            (out.loss_sum / out.denom).backward()
            recipe.after_backward()
            model.zero_grad(set_to_none=False)

        return call

    calls: dict[str, Call] = {}
    for name, variant in variants.items():
        recipe = recipes.build(variant.recipe)
        recipe.prepare(model)
        calls[name] = step(recipe)
    step(recipe)()  # gives every parameter a gradient for the optimizer
    calls["muon's step"] = build_muon(model, cfg).step
    seconds = interleaved(calls, arguments.repeats)
    show(
        f"forward and backward of {ids.numel()} tokens, {torch.get_num_threads()} threads",
        seconds,
        dict.fromkeys(calls, 1.0),
        {name: "plain" for name in variants if name != "plain"}
        | {"layerskip, p_max 0.2": "layerskip, no layer dropout"},
    )


def bench_loss(_arguments: argparse.Namespace) -> None:
    """Compare peak memory of the chunked loss with materialising all logits, for 1, 4 and 16 exits."""
    from ssd_train.losses.chunked import ExitTerm, chunked_exit_loss

    if importlib.util.find_spec("psutil") is None:
        raise SSDError("psutil: memory is measured with this package; run `make bench`, which installs it")
    tokens, width, vocab = 4096, 256, 32000
    table = Table(
        "exits",
        "all logits, MiB",
        "chunked, MiB",
        title=f"peak memory above the inputs, {tokens} tokens, V={vocab}",
    )
    for count in (1, 4, 16):
        states = [torch.randn(tokens, width, requires_grad=True) for _ in range(count + 1)]
        head = nn.Linear(width, vocab, bias=False)
        labels = torch.randint(vocab, (tokens,))

        def chunked(
            states: list[torch.Tensor] = states, head: nn.Linear = head, labels: torch.Tensor = labels
        ) -> None:
            terms = [ExitTerm(0.3, (("forward", 0.3, False),))] * (len(states) - 1)
            chunked_exit_loss(
                states[0], states[1:], labels, head.weight, None, terms, chunk_tokens=512
            ).total.backward()

        def whole(
            states: list[torch.Tensor] = states, head: nn.Linear = head, labels: torch.Tensor = labels
        ) -> None:
            final = head(states[0])
            loss = nn.functional.cross_entropy(final, labels, reduction="sum")
            teacher = final.detach().softmax(-1)
            for state in states[1:]:
                logits = head(state)
                loss = loss + 0.3 * nn.functional.cross_entropy(logits, labels, reduction="sum")
                loss = loss + 0.3 * nn.functional.kl_div(logits.log_softmax(-1), teacher, reduction="sum")
            loss.backward()

        fits = count <= 4
        table.add_row(str(count), f"{peak(whole):.0f}" if fits else "not run", f"{peak(chunked):.0f}")
    console.print(table)


def peak(call: Call) -> float:
    """Return the peak of resident memory during `call` above its start, in MiB, sampled every millisecond."""
    import psutil

    process, top, done = psutil.Process(), [0], threading.Event()
    before = process.memory_info().rss

    def watch() -> None:
        while not done.is_set():
            top[0] = max(top[0], process.memory_info().rss)
            time.sleep(0.001)

    watcher = threading.Thread(target=watch)
    watcher.start()
    call()
    done.set()
    watcher.join()
    return (top[0] - before) / 2**20


def main(arguments: list[str] | None = None) -> int:
    """Run one benchmark and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2, help="threads of torch")
    parser.add_argument("--repeats", type=int, default=7)
    commands = parser.add_subparsers(required=True)
    decode = commands.add_parser("decode", help="decoding loops")
    decode.add_argument("checkpoint")
    decode.add_argument("--exit", type=int, default=2)
    decode.add_argument("--gamma", type=int, default=4)
    decode.add_argument("--prompts", type=int, default=4, help="prompts of each task")
    decode.add_argument("--new-tokens", type=int, default=64)
    decode.set_defaults(run=bench_decode)
    train = commands.add_parser("train", help="training step")
    train.add_argument("overrides", nargs="*")
    train.set_defaults(run=bench_train)
    loss = commands.add_parser("loss", help="memory of the loss")
    loss.set_defaults(run=bench_loss)
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(chosen.threads)
    try:
        chosen.run(chosen)
    except SSDError as error:
        print_error(error)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

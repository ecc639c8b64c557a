"""Fuzz for hours: `make fuzz MINUTES=60 SEED=0`, or `python -m tests.fuzz --minutes 60 --seed 0 [--only NAME …]`.

Every pass gives each arm some examples on models not seen before. The first fault of an arm is printed with a script
that shows it, the arm rests, the others go on. Exit code 1 if there was a fault, or an arm drafted next to nothing.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
import warnings
from collections.abc import Sequence

import transformers

from tests.fuzz import causal, diffusion, law, speech
from tests.fuzz.campaign import Arm, Fault, campaign
from tests.fuzz.tally import Tally, table

EXAMPLES = 80
"""Examples an ordinary arm gets in a pass."""
_PASS = 1_000
"""Seeds a pass may use; of two runs whose seeds differ no pass is the same."""


def all_arms() -> list[Arm]:
    """Return the arms of everything that is registered now, except those that take seconds a case."""
    return [arm for kind in (causal, law, diffusion, speech) for arm in kind.arms()]


def fuzz(
    arms: Sequence[Arm], minutes: float, seed: int, examples: int
) -> tuple[dict[str, Tally], list[Fault]]:
    """Fuzz `arms` for `minutes`, at least one pass; return the tallies by name and the faults."""
    tallies = {arm.name: Tally() for arm in arms}
    faults: list[Fault] = []
    until, resting = time.monotonic() + 60 * minutes, set()
    for turn in itertools.count():
        variants = range(first := 2 * (seed * _PASS + turn), first + 2)
        for at, arm in enumerate(arms):
            if turn and time.monotonic() > until:
                return tallies, faults
            if arm.name in resting:
                continue
            try:
                count = max(2, round(examples * arm.share))
                campaign(arm, count, (seed * _PASS + turn) * len(arms) + at, variants, tallies[arm.name])
            except Fault as fault:
                print(f"\n{fault}\n", flush=True)
                faults.append(fault)
                resting.add(arm.name)
        print(f"pass {turn + 1}: {sum(t.decodings for t in tallies.values())} decodings", flush=True)
    raise AssertionError("a count never ends")


def main() -> int:
    """Run the command line; return its exit code."""
    parser = argparse.ArgumentParser(description="Compare drafts with plain decoding on random cases.")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    parser.add_argument("--examples", type=int, default=EXAMPLES, help="cases an ordinary arm gets in a pass")
    parser.add_argument("--only", nargs="*", help="names of arms, or their beginnings")
    given = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.simplefilter("ignore")
    every = [*all_arms(), *causal.auto_arms()]
    arms = [arm for arm in every if not given.only or arm.name.startswith(tuple(given.only))]
    print(f"seed {given.seed}, {len(arms)} arms, {given.minutes:g} minutes", flush=True)
    start = time.monotonic()
    tallies, faults = fuzz(arms, given.minutes, given.seed, given.examples)
    print(table(tallies))
    idle = [f"{arm.name}: {why}" for arm in arms if arm.judged and (why := tallies[arm.name].unfair())]
    print("\n".join(idle))
    print(f"seed {given.seed}: {len(faults)} faults in {time.monotonic() - start:.0f} seconds")
    return int(bool(faults or idle))


if __name__ == "__main__":
    sys.exit(main())

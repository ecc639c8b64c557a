"""Run one arm of the fuzzer: random cases of one strategy, each compared with its reference, the first fault shrunk."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity
from hypothesis.strategies import SearchStrategy

from tests.fuzz.tally import Tally


@dataclass(slots=True)
class Arm:
    """What is fuzzed: its random cases, drawn from models of `variants`, and how one case is checked."""

    name: str
    cases: Callable[[range], SearchStrategy[Any]]
    check: Callable[[Any, Tally], None]
    """Decode a case and count it; AssertionError when the output is not the reference's."""
    share: float = 1.0
    """Examples it gets, in those of an ordinary arm: a test of a law decodes thousands of rows."""
    judged: bool = True
    """Whether it must have drafted in a fair share of its decodings."""


class Fault(AssertionError):
    """A case whose output is wrong, or that raised what is no refusal; the message holds a script that shows it."""


@dataclass(slots=True)
class _Watch:
    """Remembers the last case that failed, which is the smallest once shrinking is over."""

    arm: Arm
    tally: Tally
    failing: Any = None
    after: int = 0
    seen: list[str] = field(default_factory=list)

    def __call__(self, case: Any) -> None:
        """Check one case."""
        try:
            self.arm.check(case, self.tally)
        except Exception:
            if self.failing is None:
                self.after = self.tally.decodings
            self.failing = case
            raise


def campaign(arm: Arm, examples: int, seed: int, variants: range, tally: Tally) -> None:
    """Check `examples` random cases from `seed` on models of `variants`; raise Fault with a script at the first fault.

    The faulty case is the smallest that shrinking finds.
    """
    watch = _Watch(arm, tally)
    start = time.perf_counter()
    settings = hypothesis.settings(
        max_examples=examples,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
        report_multiple_bugs=False,
        verbosity=Verbosity.quiet,
        print_blob=False,
    )

    @hypothesis.seed(seed)
    @settings
    @hypothesis.given(arm.cases(variants))
    def run(case: Any) -> None:
        watch(case)

    try:
        run()
    except Exception as error:
        if watch.failing is None:
            raise
        text = f"{arm.name}: a fault after {watch.after} decodings (seed {seed})\n{error}\n\n{script(watch.failing)}"
        raise Fault(text) from error
    finally:
        tally.seconds += time.perf_counter() - start


def script(case: Any) -> str:
    """Return a script that checks one case by itself, to be run from the repository's root."""
    module = type(case).__module__
    return f"# PYTHONPATH=. python FILE\nfrom {module} import *\n\nshow({case!r})\n"

"""Say on the error stream what an evaluation is doing, and keep the libraries below it quiet meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text


@contextmanager
def spinner(console: Console | None = None) -> Iterator[Callable[[str], None]]:
    """Yield a function taking one line a phase: a live line in a terminal, plain timed lines elsewhere."""
    console = console or Console(stderr=True, highlight=False, markup=False)
    start = time.monotonic()
    if not console.is_terminal:
        yield lambda line: console.print(f"[{time.monotonic() - start:5.0f} s] {line}")
        return
    # Without a refresh of its own: a thread that redraws a spinner takes some 4 % from two cores that are measured.
    with Live(Text("starting"), console=console, auto_refresh=False, transient=True) as live:
        yield lambda line: live.update(Text(f"[{time.monotonic() - start:5.0f} s] {line}"), refresh=True)


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Silence transformers' advice and progress bars inside the block."""
    from transformers.utils import logging as library

    logging: Any = library

    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()

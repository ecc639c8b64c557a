"""What entry points say on the error stream: one screen, no traceback."""

from __future__ import annotations

import os

from rich.console import Console
from rich.text import Text

from ssd_infer.errors import ConfigError, SSDError


def error_console() -> Console:
    """Return a console on the error stream that neither wraps nor recolours what it prints."""
    return Console(stderr=True, soft_wrap=True, highlight=False, markup=False)


def print_error(error: SSDError) -> None:
    """Print `error` on the error stream; of many ranks with one wrong configuration only the first speaks."""
    rank = int(os.environ.get("RANK", "0"))
    if rank and isinstance(error, ConfigError):
        return
    console = error_console()
    console.print(Text(_headline(error, rank), style="bold red"))
    lines = error.problems if isinstance(error, ConfigError) else str(error).splitlines()
    for line in lines:
        console.print(Text(f"  {line}"))


def _headline(error: SSDError, rank: int) -> str:
    """Return the first line: what kind of thing is wrong, and on which rank if there are several."""
    where = f" (rank {rank})" if rank else ""
    if not isinstance(error, ConfigError):
        return f"Error{where}"
    count = len(error.problems)
    return f"Configuration: {count} problem{'s' if count != 1 else ''}"

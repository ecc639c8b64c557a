"""Hydra 1.3 under Python 3.14, whose argparse reads every help text at once and refuses one that is no text.

Hydra makes the help of `--shell-completion` when it is shown. Without this no command of ours starts there; a later
release of Hydra makes it needless.
"""

from __future__ import annotations

import argparse
from typing import Any

HELP = "Install or uninstall the completion of a shell."


def admit_lazy_help() -> None:
    """Give Hydra's option a text before argparse checks it; does nothing where argparse checks no texts."""
    container: Any = argparse._ActionsContainer
    check = getattr(container, "_check_help", None)
    if check is None or getattr(check, "admits_lazy_help", False):
        return

    def check_text(parser: Any, action: argparse.Action) -> None:
        if type(action.help).__name__ == "LazyCompletionHelp":
            action.help = HELP
        check(parser, action)

    check_text.admits_lazy_help = True  # type: ignore[attr-defined]
    container._check_help = check_text

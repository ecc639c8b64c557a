"""Hydra's parser is built where argparse checks help texts, as it does from Python 3.14 on."""

from __future__ import annotations

import argparse
from typing import Any

import pytest
from hydra._internal.utils import get_args_parser

from ssd_infer.cli.lazy_help import HELP, admit_lazy_help


def test_hydras_help_is_a_text_when_it_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []

    def check(_: Any, action: argparse.Action) -> None:
        if not isinstance(action.help, str | None):
            raise TypeError("badly formed help string")
        checked.append(action.help or "")

    add = argparse._ActionsContainer.add_argument

    def adding(self: Any, *names: str, **settings: Any) -> argparse.Action:
        action = add(self, *names, **settings)
        self._check_help(action)
        return action

    monkeypatch.setattr(argparse._ActionsContainer, "_check_help", check, raising=False)
    monkeypatch.setattr(argparse._ActionsContainer, "add_argument", adding)
    with pytest.raises(TypeError, match="badly formed"):
        get_args_parser()
    admit_lazy_help()
    admit_lazy_help()
    parser = get_args_parser()
    assert HELP in checked
    assert HELP in parser.format_help()
    assert len(checked) > 5


def test_a_help_that_is_no_text_is_refused_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(_: Any, action: argparse.Action) -> None:
        raise TypeError(type(action.help).__name__)

    monkeypatch.setattr(argparse._ActionsContainer, "_check_help", check, raising=False)
    admit_lazy_help()
    action = argparse.Action(["--x"], "x", help=object())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="object"):
        argparse.ArgumentParser()._check_help(action)  # type: ignore[attr-defined]

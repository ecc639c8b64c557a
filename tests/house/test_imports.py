"""Every import goes down the floor plan, also those inside functions and those for type checkers only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

INFER = (
    ("cli", ("cli", "__main__", "compare", "transcribe", "watch")),
    ("evaluation", ("evaluation",)),
    ("api", ("", "api", "hf", "bridge", "inputs")),
    ("strategies", ("strategies",)),
    ("families", ("families",)),
    ("models", ("models",)),
    ("offload", ("offload",)),
    ("tuning", ("tuning",)),
    ("engine", ("engine",)),
    ("corpus", ("corpus",)),
    ("report", ("report",)),
    ("config", ("config",)),
    ("checkpoint", ("checkpoint",)),
    ("errors", ("errors", "jsonio", "threads", "version")),
)
"""Floors of ssd_infer from the top down, with the modules and packages on each; "" is the package itself."""
TRAIN = (
    ("command", ("__main__",)),
    ("cli", ("cli", "run")),
    ("trainer", ("trainer",)),
    ("runs", ("runs",)),
    ("recipes", ("recipes",)),
    ("building", ("models", "data")),
    ("losses", ("losses",)),
    ("distributed", ("distributed",)),
    ("config", ("config",)),
    ("package", ("",)),
)
ROOMS = (
    "early_exit",
    "skip_layers",
    "sparse_attention",
    "reduced_experts",
    "fewer_steps",
    "ctc_draft",
    "ngram",
)
"""Rooms of strategies; one may use a room that stands further right, no other."""

LAZY = {
    "deepspeed",
    "jiwer",
    "matplotlib",
    "mlflow",
    "optuna",
    "peft",
    "py_nanotts",
    "scipy",
    "soundfile",
    "wandb",
}
"""Heavy or optional libraries that are imported where they are used."""


def modules(top: str) -> dict[str, Path]:
    """Return dotted name → file of every module below `top`."""
    found = {}
    for path in sorted((ROOT / top).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """Yield the modules of ours that the file at `path` imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            found = [name if name in known else node.module for name in names]
            yield from (name for name in dict.fromkeys(found) if name in known)


def floor_of(module: str, plan: tuple[tuple[str, tuple[str, ...]], ...]) -> int:
    """Return the floor a module stands on; 0 is the top."""
    room = (*module.split("."), "")[1]
    return next(index for index, (_, rooms) in enumerate(plan) if room in rooms)


@pytest.mark.parametrize(("top", "plan"), [("ssd_infer", INFER), ("ssd_train", TRAIN)])
def test_every_import_goes_down(top: str, plan: tuple[tuple[str, tuple[str, ...]], ...]) -> None:
    known = modules(top)
    upward = [
        f"{module} imports {other}"
        for module, path in known.items()
        for other in imported(path, known)
        if floor_of(module, plan) > floor_of(other, plan)
    ]
    assert upward == []


def test_decoding_knows_nothing_of_training() -> None:
    known = modules("ssd_infer") | modules("ssd_train")
    wrong = [
        f"{module} imports {other}"
        for module, path in modules("ssd_infer").items()
        for other in imported(path, known)
        if other.startswith("ssd_train")
    ]
    assert wrong == []


def test_packages_form_no_circle() -> None:
    """Count arrows between packages below both tops; a package on a circle can reach itself."""
    known = modules("ssd_infer") | modules("ssd_train")
    arrows: dict[str, set[str]] = {}
    for module, path in known.items():
        here = _package(module)
        arrows.setdefault(here, set()).update(_package(other) for other in imported(path, known))
    circles = sorted(name for name in arrows if name in _reach(arrows, arrows[name] - {name}))
    assert circles == []


def _package(module: str) -> str:
    """Return the room of a module; a module right below a top is a room by itself, as is a strategy's package."""
    parts = module.split(".")
    rooms = 3 if parts[1:2] == ["strategies"] and len(parts) > 3 else 2
    return ".".join(parts[:rooms])


def _reach(arrows: dict[str, set[str]], start: set[str]) -> set[str]:
    seen: set[str] = set()
    waiting = list(start)
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += arrows.get(name, set())
    return seen


def test_a_room_uses_only_rooms_further_right() -> None:
    known = modules("ssd_infer")
    wrong = []
    for module, path in known.items():
        here = module.split(".")
        if here[1:2] != ["strategies"] or len(here) < 4:
            continue
        for other in imported(path, known):
            there = other.split(".")
            room = there[2] if there[1:2] == ["strategies"] and len(there) > 2 else ""
            if room in ROOMS and ROOMS.index(room) < ROOMS.index(here[2]):
                wrong.append(f"{module} imports {other}")
    assert wrong == []


def test_losses_import_no_transformers() -> None:
    wrong = []
    for path in sorted((ROOT / "ssd_train" / "losses").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            wrong += [path.name for name in names if name.split(".")[0] == "transformers"]
    assert wrong == []

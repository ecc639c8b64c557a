"""Every import goes down the floor plan, also those inside functions and those for type checkers only."""

from __future__ import annotations

import ast
import subprocess
import sys
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
    ("experts", ("experts",)),
    ("offload", ("offload",)),
    ("tuning", ("tuning",)),
    ("engine", ("engine",)),
    ("corpus", ("corpus",)),
    ("report", ("report",)),
    ("config", ("config",)),
    ("checkpoint", ("checkpoint",)),
    ("errors", ("atomic", "entries", "errors", "jsonio", "threads", "version")),
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
    "draft_module",
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
    # Optional: an extra installs them, and what needs them says so.
    "jiwer": {"ssd_infer.families.speech.scoring"},
    "mlflow": {"ssd_train.runs.tracking"},
    "optuna": {"ssd_infer.strategies.skip_layers.bayes"},
    "peft": {"ssd_infer.checkpoint.adapters", "ssd_infer.models.asr_lm_decoder"},
    "py_nanotts": {"ssd_train.data.speech.engines"},
    "scipy": {"ssd_infer.families.speech.audio"},
    "soundfile": {
        "ssd_infer.families.speech.audio",
        "ssd_infer.families.speech.utterances",
        "ssd_train.data.speech.engines",
        "ssd_train.data.speech.hub",
    },
    # Installed, slow to import, and needed by one setting only.
    "accelerate": {"ssd_infer.offload.offload"},
    "datasets": {"ssd_train.data.hub", "ssd_train.data.speech.hub"},
    "huggingface_hub": {"ssd_infer.checkpoint.hub"},
    "pyarrow": {"ssd_infer.corpus.questions", "ssd_train.data.local"},
    "safetensors": {
        "ssd_infer.checkpoint.draft_files",
        "ssd_infer.checkpoint.load",
        "ssd_infer.offload.files",
        "ssd_infer.tuning.saved_head",
    },
    "wandb": {"ssd_infer.report.wandb", "ssd_train.runs.tracking"},
    # The command line's, which Python callers do without.
    "hydra": {"ssd_infer.transcribe"},
    "omegaconf": {"ssd_infer.checkpoint.provenance"},
    # Compiled attention, TensorBoard, and a launcher that is asked for its rank before torch is there.
    "torch": {
        "ssd_infer.engine.kernels.flex",
        "ssd_infer.models.masked_diffusion",
        "ssd_train.distributed.launcher",
        "ssd_train.runs.tracking",
    },
    # Parts of it that load a few hundred modules, wanted where a model of it or a name on its hub is at hand.
    "transformers": {
        "ssd_infer.bridge",
        "ssd_infer.checkpoint.load",
        "ssd_infer.checkpoint.quantised",
        "ssd_infer.engine.given_processors",
        "ssd_infer.engine.processors",
        "ssd_infer.evaluation.progress",
        "ssd_infer.models.asr_processor",
        "ssd_infer.offload.offload",
        "ssd_train.data.contents",
        "ssd_train.distributed.launcher",
    },
}
"""Libraries imported inside functions, and the modules that do; each is heavy or optional."""
LAZY_OWN = {
    # A wrong configuration is refused before torch is imported: what acts on a right one comes after the check.
    "ssd_infer.__main__": {
        "ssd_infer.checkpoint.hub",
        "ssd_infer.evaluation",
        "ssd_infer.evaluation.alone",
        "ssd_infer.evaluation.progress",
        "ssd_infer.report.terminal",
        "ssd_infer.watch",
    },
    "ssd_train.__main__": {"ssd_train.run"},
    # The same, in a module that is a function and a command line at once: either does without what the other needs.
    "ssd_infer.transcribe": {
        "ssd_infer.checkpoint.load",
        "ssd_infer.cli.launch",
        "ssd_infer.cli.show",
        "ssd_infer.cli.transcription_settings",
        "ssd_infer.config.compose",
        "ssd_infer.engine.devices",
        "ssd_infer.families.speech.audio",
        "ssd_infer.strategies.ctc_draft.transcription",
    },
    # Names are known without torch; the class of a strategy is looked at when one is registered.
    "ssd_infer.strategies.registry": {"ssd_infer.strategies.base"},
    # Sound is read by libraries that a run on text does not load; a processor is made where a model came without.
    "ssd_train.data.contents": {"ssd_train.data.speech.open_speech"},
    "ssd_infer.strategies.ctc_draft.transcription": {"ssd_infer.models.asr_processor"},
}
"""Modules that import others of ours inside functions, and which: each for what it would load, none for a circle."""


def modules(top: str) -> dict[str, Path]:
    """Return dotted name → file of every module below `top`."""
    found = {}
    for path in sorted((ROOT / top).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """Yield the modules of ours that the file at `path` imports, wherever in it."""
    yield from _named(ast.parse(path.read_text("utf-8")), known)


def _named(tree: ast.AST, known: dict[str, Path]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            found = [name if name in known else node.module for name in names]
            yield from (name for name in dict.fromkeys(found) if name in known)


def imported_for_types(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """Yield the modules of ours that the file at `path` imports below `if TYPE_CHECKING`, and nowhere else."""
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from _named(node, known)


def imported_inside(path: Path) -> Iterator[str]:
    """Yield the modules that the functions of the file at `path` import."""
    for function in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield node.module or "."


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


@pytest.mark.parametrize("top", ["ssd_infer", "ssd_train"])
def test_an_import_inside_a_function_is_one_of_the_list(top: str) -> None:
    """So that none hides a circle; and the list holds no entry that nobody needs any more."""
    libraries: dict[str, set[str]] = {}
    own: dict[str, set[str]] = {}
    for module, path in modules(top).items():
        for name in imported_inside(path):
            library = name.split(".")[0]
            if library in ("ssd_infer", "ssd_train"):
                own.setdefault(module, set()).add(name)
            else:
                libraries.setdefault(library, set()).add(module)
    assert own == {module: names for module, names in LAZY_OWN.items() if module.split(".")[0] == top}
    listed = {
        name: {module for module in users if module.split(".")[0] == top} for name, users in LAZY.items()
    }
    assert libraries == {name: users for name, users in listed.items() if users}


def test_modules_form_no_circle() -> None:
    """Imports inside functions count, imports for type checkers alone do not: a circle of them is none at run time."""
    known = modules("ssd_infer") | modules("ssd_train")
    arrows = {
        module: set(imported(path, known)) - set(imported_for_types(path, known))
        for module, path in known.items()
    }
    circles = sorted(module for module in arrows if module in _reach(arrows, arrows[module] - {module}))
    assert circles == []


LIGHT = ("ssd_infer", "ssd_infer.strategies.registry", "ssd_train.recipes.registry", "ssd_train.cli.validate")


@pytest.mark.parametrize(
    "module", [*LIGHT, "ssd_infer.__main__", "ssd_infer.transcribe", "ssd_train.__main__"]
)
def test_what_checks_a_configuration_imports_no_torch(module: str) -> None:
    """Nor anything else that takes longer than the check; names of strategies and recipes are looked up as well."""
    heavy = ("torch", "transformers", "matplotlib", "numpy")
    code = f"import sys, {module} as it\n"
    if module.endswith("registry"):
        code += "it.infos()\n"
    code += f"print(*(name for name in {heavy} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.returncode) == ("", 0), done.stdout + done.stderr


def test_decoding_draws_no_plots() -> None:
    """What a strategy says for a report is data; matplotlib is loaded where pictures are made."""
    code = "import sys, ssd_infer.api\nprint(*(name for name in ('matplotlib', 'jsonschema') if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.returncode) == ("", 0), done.stdout + done.stderr


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

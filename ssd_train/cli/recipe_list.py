"""List the recipes that the command line can reach, for someone who named none."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from hydra.core.hydra_config import HydraConfig

from ssd_infer.cli.console import error_console

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


def recipe_descriptions() -> dict[str, str]:
    """Return every recipe on Hydra's search path with the first sentence of its file's header.

    The directory searched first wins, as it does when Hydra composes. Works only while a Hydra task runs.
    """
    found: dict[str, str] = {}
    for source in HydraConfig.get().runtime.config_sources:
        for file in _recipe_files(source.schema, source.path):
            found.setdefault(file.name.removesuffix(".yaml"), _description(file.read_text(encoding="utf-8")))
    return dict(sorted(found.items()))


def print_recipes() -> None:
    """Print what to type and what there is to choose from on the error stream."""
    found = recipe_descriptions()
    width = max(map(len, found), default=0)
    lines = [f"  +recipe={name:<{width}}  {text}".rstrip() for name, text in found.items()]
    error_console().print(
        "\n".join(["Name a recipe: python -m ssd_train +recipe=NAME [key=value ...]", *lines])
    )


def _description(text: str) -> str:
    """Return the first comment of a recipe file that is not a Hydra directive."""
    comments = [line.lstrip("# ").strip() for line in text.splitlines() if line.startswith("#")]
    return next((comment for comment in comments if comment and not comment.startswith("@")), "")


def _recipe_files(schema: str, path: str) -> list[Traversable]:
    """Return the YAML files in the recipe group of one source, a directory or a package."""
    root: Traversable
    if schema == "file":
        root = Path(path)
    elif schema == "pkg":
        package, *folders = path.replace("/", ".").split(".")
        root = resources.files(package).joinpath(*folders)
    else:
        return []
    group = root / "recipe"
    return [file for file in group.iterdir() if file.name.endswith(".yaml")] if group.is_dir() else []

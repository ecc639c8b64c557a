"""A tiny frozen target, and runs that train a draft module beside it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ssd_train.config.schema import Root
from ssd_train.config.schema_own_text import SelfGeneratedConfig
from ssd_train.recipes.frozen_target.settings import FrozenTargetConfig
from tests.train.support import base_model, tiny_root


def frozen_root(directory: Path, *, recipe: dict[str, Any] | None = None, **train: Any) -> Root:
    """Return a run of two exits beside a four-layer Llama in float32 that is saved below `directory`."""
    directory.mkdir(exist_ok=True)
    settings: dict[str, Any] = {"save_dtype": "float32", "eval_steps": 2, **train}
    cfg = tiny_root(directory, plain=True, **settings)
    chosen: dict[str, Any] = {"exits": [1, 2], "rows": 280, "target_dtype": "float32", **(recipe or {})}
    if chosen.get("form", "exit") != "exit":
        chosen["exits"] = None
    if chosen.get("form") == "heads":
        chosen["module"] = "rank"
    return replace(
        cfg,
        recipe_name="frozen_target",
        model=base_model(directory),
        recipe=FrozenTargetConfig(chunk_tokens=32, **chosen),
    )


def own_text(cfg: Root, directory: Path, **changes: Any) -> Root:
    """Return `cfg` on text that its model writes about the prompts of a file."""
    prompts = directory / "prompts.txt"
    prompts.write_text("\n\n".join(f"alpha beta gamma {n}" for n in range(9)), encoding="utf-8")
    corpus = directory / "text.txt"
    settings: dict[str, Any] = {
        "prompts": [f"file:{prompts}"],
        "own_tokens": 600,
        "own_length": 16,
        "prompt_tokens": 8,
        "own_batch": 4,
        "corpus": str(corpus),
        "block_size": 24,
        **changes,
    }
    return replace(cfg, data=SelfGeneratedConfig(**settings))

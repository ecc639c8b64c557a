"""Rules of text that the target itself writes."""

from __future__ import annotations

from pathlib import Path

from ssd_infer.config.checks import Checks, suggest
from ssd_train.config.schema import HFModelConfig, Root
from ssd_train.config.schema_own_text import SelfGeneratedConfig

PROMPTS = ("invented", "stdlib", "categories")


def check_own_text(data: SelfGeneratedConfig, checks: Checks) -> None:
    """Check prompts, lengths and the mixture."""
    checks.require(len(data.prompts) > 0, "prompts", "must name at least one", data.prompts, "try [stdlib]")
    for index, name in enumerate(data.prompts):
        _check_prompts(f"prompts.{index}", name, checks)
    for key in ("own_tokens", "own_length", "prompt_tokens", "own_batch"):
        checks.at_least(key, getattr(data, key), 1)
    room = data.block_size - data.own_length
    rule = f"must leave room for data.own_length={data.own_length} in a block of {data.block_size}"
    checks.require(
        data.prompt_tokens <= room, "prompt_tokens", rule, data.prompt_tokens, f"try {max(1, room)}"
    )
    inside = 0 < data.own_share <= 1
    remedy = "use data=stdlib_text or data=local for a corpus alone"
    checks.require(inside, "own_share", "must be above 0 and at most 1", data.own_share, remedy)
    if data.corpus != "stdlib":
        there = Path(data.corpus).expanduser()
        rule = "must be stdlib, or files that are there"
        found = there.exists() or any(character in data.corpus for character in "*?[")
        checks.require(found, "corpus", rule, data.corpus, f"looked from {Path.cwd()}")


def check_writer(cfg: Root, checks: Checks) -> None:
    """Check that there is a model to write the text: one that exists before the run."""
    if isinstance(cfg.data, SelfGeneratedConfig):
        rule = "is text that a model writes before the run, and model.kind is not hf"
        exists = isinstance(cfg.model, HFModelConfig)
        remedy = "use model=hf model.name=DIR, or another data="
        checks.require(exists, "kind", rule, cfg.data.kind, remedy)


def _check_prompts(key: str, name: str, checks: Checks) -> None:
    kind, colon, path = name.partition(":")
    if colon and kind == "file":
        there = Path(path).expanduser().is_file()
        checks.require(
            there, key, "must be file: and a file that is there", name, f"looked from {Path.cwd()}"
        )
        return
    rule = f"must be one of {', '.join(PROMPTS)}, or file:PATH"
    checks.require(name in PROMPTS, key, rule, name, suggest(name, PROMPTS))

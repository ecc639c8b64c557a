"""Configuration of text that the target itself writes."""

from __future__ import annotations

from dataclasses import dataclass, field

from ssd_train.config.schema import DataConfig


@dataclass(slots=True)
class SelfGeneratedConfig(DataConfig):
    """Continuations of prompts by the model a run starts from, mixed with text of a corpus."""

    kind: str = "self_generated"
    """Always `self_generated`."""
    prompts: list[str] = field(default_factory=lambda: ["invented", "stdlib"])
    """What is continued, in equal parts: invented (the model asks itself), stdlib, categories, or file:PATH."""
    own_tokens: int = 131072
    """Tokens the model writes, at least; they are kept and used again."""
    own_length: int = 160
    """Most tokens of one continuation."""
    prompt_tokens: int = 96
    """Most tokens of a prompt; of a longer one its end is taken."""
    own_share: float = 0.5
    """Share of training blocks that hold own text; the rest is of `corpus`."""
    own_batch: int = 32
    """Prompts that are continued together; half of all batches are greedy, half sampled at temperature 1."""
    corpus: str = "stdlib"
    """The other text: stdlib, or a path as `data=local data.path` takes it."""
    text_field: str = "text"
    """Column of the text where `corpus` is JSONL or Parquet."""

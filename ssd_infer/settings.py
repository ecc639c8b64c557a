"""Settings of one evaluation: which checkpoint, which drafts, which prompts, how long.

`python -m ssd_infer checkpoint=DIR` fills them from `conf/evaluate.yaml`; a training run fills them from its
own `eval` node.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING


@dataclass(slots=True)
class EvalSettings:
    """Everything `ssd_infer.evaluation.evaluate` needs to know."""

    checkpoint: str = MISSING
    """Directory of the checkpoint, as `save_pretrained` writes it."""
    draft: str = "all"
    """`all`, or the name of one draft strategy."""
    draft_params: dict[str, Any] = field(default_factory=dict)
    """Parameters of that one strategy; what is left out is `auto`."""
    tasks: list[str] = field(default_factory=lambda: ["auto"])
    """Prompt sets: auto, stdlib_prose, stdlib_code or file:PATH."""
    out: str | None = None
    """Directory of the report; null means `report/` inside the checkpoint."""
    samples: int = 32
    """Prompts of each task."""
    prompt_tokens: int = 64
    """Longest prompt in tokens."""
    max_new_tokens: int = 128
    """Tokens decoded for each prompt."""
    repeats: int = 3
    """Timed repetitions of each prompt."""
    batch_size: int = 1
    """Rows decoded together in the timed runs."""
    temperatures: list[float] = field(default_factory=lambda: [0.0, 1.0])
    """Temperatures decoded at; 0 is greedy."""
    top_k: int = 0
    """Keep the k most probable tokens when sampling; 0 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of tokens with this much probability when sampling."""
    dtype: str = "float32"
    """Precision of weights and arithmetic: float32, bfloat16, float16 or float64."""
    device: str = "auto"
    """auto, cpu, cuda or mps."""
    threads: int = 0
    """CPU threads of torch; 0 leaves torch's choice."""
    seed: int = 0
    """Seed of prompt choice and sampling."""
    max_minutes: float = 0.0
    """Stop starting new measurements after this long; 0 sets no limit."""
    grid: bool = True
    """Measure a grid of exit layers and draft lengths for the heat map."""

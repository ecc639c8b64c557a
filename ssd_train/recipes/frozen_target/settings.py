"""Settings of the frozen-target recipe."""

from __future__ import annotations

from dataclasses import dataclass

from ssd_train.config.schema import RecipeConfig


@dataclass(slots=True)
class FrozenTargetConfig(RecipeConfig):
    """A small module learns to draft for a model whose weights nobody changes."""

    kind: str = "frozen_target"
    """Always `frozen_target`."""
    form: str = "exit"
    """exit (after a shallow layer), mtp (on the last state and the next embedding), or heads (on the last state)."""
    exits: list[int] | None = None
    """exit: layers E to train a module after, all in one pass of the target; the best is kept. Null: a tenth of L."""
    module: str = "layer"
    """What a module consists of: rank, attention, attention_mlp, or layer (a whole decoder layer)."""
    rank: int = 64
    """Width of module=rank."""
    mlp_width: int = 512
    """Width of the MLP of module=attention_mlp."""
    rows: int = 8192
    """Rows of the target's head that a draft looks at: those most probable along its own text; 0 for all."""
    own_rows: bool = False
    """Train copies of these rows too."""
    loss: str = "lk_hybrid"
    """lk_hybrid, kl, tv, nla or ce: ssd_train/losses/restricted.py has the formulas."""
    rollout: int = 3
    """mtp: steps on its own output, from every token."""
    heads: int = 4
    """heads: how many, each for one token further."""
    step_decay: float = 0.8
    """mtp, heads: weight of each further token against the one before, since it is reached less often."""
    target_dtype: str = "auto"
    """Precision of the frozen forward: float32, bfloat16, or auto: bfloat16 where the processor multiplies it fast."""
    patience: int = 0
    """Stop after so many validations in a row without a higher predicted speedup; 0 never stops early."""
    chunk_tokens: int = 256
    """Tokens whose logits exist at one time."""

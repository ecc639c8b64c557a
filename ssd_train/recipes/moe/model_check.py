"""Whether a model suits the mixture-of-experts recipe, told from its configuration before any weight loads."""

from __future__ import annotations

from transformers import PretrainedConfig

from ssd_infer.errors import ConfigError, Problem, UnsupportedModelError
from ssd_infer.offload.layout import FAMILIES
from ssd_train.recipes.moe.settings import MoeConfig


def check_model(config: PretrainedConfig, recipe: MoeConfig) -> None:
    """Raise `UnsupportedModelError` for a dense model, `ConfigError` for a draft of more experts than the model's."""
    if config.model_type not in FAMILIES:
        raise UnsupportedModelError(
            f"recipe moe: {config.model_type} models have no routed experts known here; "
            f"use model=qwen2_moe, or a {', '.join(FAMILIES)} checkpoint with model=hf"
        )
    top_k = int(config.num_experts_per_tok)
    rule = f"must not exceed the {top_k} experts the model routes a token to"
    wrong = [k_draft for k_draft in recipe.k_draft or [] if k_draft > top_k]
    if wrong:
        raise ConfigError([Problem("recipe.k_draft", rule, wrong, f"try {list(range(1, top_k))}")])

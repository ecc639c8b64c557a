"""Make the generation config of a pretrained model one that can be saved again, or say why it cannot."""

from __future__ import annotations

import logging
from typing import Any

from transformers import PreTrainedModel

from ssd_infer.errors import ConfigError, Problem

logger = logging.getLogger(__name__)

_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff")
_BEAMS = ("early_stopping", "length_penalty")
_OUTPUTS = ("output_attentions", "output_hidden_states", "output_scores", "output_logits")
_CACHE = ("cache_implementation", "cache_config")


def make_saveable(model: PreTrainedModel, name: str) -> None:
    """Take out of `model.generation_config` what has no effect there and would keep it from being saved.

    transformers loads such a file with a warning and refuses to write it, which only the first checkpoint would
    notice. Raises ConfigError where what is wrong does have an effect; `name` is what the user called the model.
    """
    config: Any = getattr(model, "generation_config", None)
    if config is None or _refusal(config) is None:
        return
    dropped = {}
    for key in _without_effect(config):
        value = getattr(config, key, None)
        if value is not None and value is not False:
            dropped[key] = value
            setattr(config, key, None)
    refusal = _refusal(config)
    if refusal is not None:
        rule = f"has a generation config that cannot be saved again: {refusal}"
        raise ConfigError([Problem("model.name", rule, name, "correct generation_config.json there")])
    listed = ", ".join(f"{key}={value!r}" for key, value in dropped.items())
    logger.warning(
        "model.name: the generation config of %s could not have been saved with a checkpoint; taken out of it, as they "
        "have no effect beside its other settings: %s",
        *(name, listed),
    )


def _without_effect(config: Any) -> list[str]:
    """Return the settings that decoding as `config` says does not look at."""
    keys: list[str] = []
    if config.do_sample is not True:
        keys += _SAMPLING
    if config.num_beams in (None, 1):
        keys += _BEAMS
    if config.use_cache is False:
        keys += _CACHE
    if config.return_dict_in_generate is not True:
        keys += _OUTPUTS
    if (config.pad_token_id or 0) < 0:
        keys.append("pad_token_id")
    return keys


def _refusal(config: Any) -> str | None:
    """Return why transformers would not save `config`, None if it would."""
    try:
        config.validate(strict=True)
    except ValueError as error:
        return " ".join(str(error).split())[:300]
    return None

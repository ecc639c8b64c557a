"""How weights are quantised while they load: from the fields of a configuration to transformers' own object."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from ssd_infer.errors import ConfigError, Problem


def quantisation(config: Any) -> Any:
    """Return what `from_pretrained` takes as `quantization_config`: an object as it is, an object made of fields.

    torchao names its kinds by classes: `quant_type: Int8WeightOnlyConfig`, with their arguments under
    `quant_type_kwargs`. Raises ConfigError for fields of which none can be made.
    """
    if not isinstance(config, Mapping):
        return config
    from transformers.quantizers.auto import AutoQuantizationConfig

    fields = dict(config)
    try:
        if fields.get("quant_method") == "torchao" and isinstance(fields.get("quant_type"), str):
            return _torchao(fields)
        return AutoQuantizationConfig.from_dict(fields)
    except (ValueError, TypeError, KeyError, AttributeError, ImportError, AssertionError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError([Problem("quantization_config", "cannot be made", fields, first)]) from error


def _torchao(fields: dict[str, Any]) -> Any:
    """Return torchao's configuration of the kind that `quant_type` names."""
    from transformers import TorchAoConfig

    kinds: Any = importlib.import_module("torchao.quantization")
    name = fields.pop("quant_type")
    kind = getattr(kinds, name, None)
    if not name.endswith("Config") or kind is None:
        known = [item for item in dir(kinds) if item.endswith("WeightOnlyConfig")]
        raise ValueError(f"quant_type is one of {', '.join(known)}")
    del fields["quant_method"]
    return TorchAoConfig(kind(**fields.pop("quant_type_kwargs", {})), **fields)

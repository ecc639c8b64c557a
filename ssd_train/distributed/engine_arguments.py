"""Say an engine in the terms of `transformers.TrainingArguments`."""

from __future__ import annotations

import importlib.util
from datetime import timedelta
from typing import Any

import torch

from ssd_infer.errors import ConfigError, Problem
from ssd_train.config.engines import SHARDING, zero_stage
from ssd_train.config.schema import EngineConfig, Root
from ssd_train.distributed.launcher import check_launcher, join_alone


def engine_arguments(cfg: Root) -> dict[str, Any]:
    """Return the arguments of `cfg.engine`; one process without a launcher becomes a group of one where needed.

    Raises ConfigError when the launcher asks for another engine, or the engine is not installed.
    """
    engine = cfg.engine
    if engine.cpu_offload and (cfg.device == "cpu" or not torch.cuda.is_available()):
        remedy = f"use engine={engine.name}"
        raise ConfigError(
            [Problem("engine.cpu_offload", "needs an accelerator to take from", engine.name, remedy)]
        )
    check_launcher(engine.name, cfg.dtype)
    if engine.name in SHARDING:
        join_alone()
    arguments: dict[str, Any] = {
        "ddp_timeout": int(timedelta(minutes=engine.timeout_minutes).total_seconds())
    }
    if engine.name == "fsdp2":
        arguments |= {"fsdp": True, "fsdp_config": _fsdp2(engine)}
    elif zero_stage(engine.name):
        _check_deepspeed(engine.name)
        arguments["deepspeed"] = deepspeed_settings(engine)
    return arguments


def _fsdp2(engine: EngineConfig) -> dict[str, Any]:
    return {
        "version": 2,
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "reshard_after_forward": engine.reshard_after_forward,
        "cpu_offload": engine.cpu_offload,
        "state_dict_type": "SHARDED_STATE_DICT",
    }


def deepspeed_settings(engine: EngineConfig) -> dict[str, Any]:
    """Return DeepSpeed's configuration of `engine`; `auto` values come from the training arguments."""
    stage = zero_stage(engine.name)
    streams = torch.cuda.is_available()
    zero: dict[str, Any] = {"stage": stage, "overlap_comm": streams, "contiguous_gradients": True}
    if stage == 3:
        zero |= {
            "stage3_gather_16bit_weights_on_model_save": True,
            "stage3_param_persistence_threshold": "auto",
            "stage3_prefetch_bucket_size": "auto",
            "reduce_bucket_size": "auto",
        }
    if engine.cpu_offload:
        zero["offload_optimizer"] = {"device": "cpu"}
        if stage == 3:
            zero["offload_param"] = {"device": "cpu"}
    settings = {
        "zero_optimization": zero,
        # The optimizer is torch's, as in every other engine, so that they learn the same.
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "bf16": {"enabled": "auto"},
        "fp16": {"enabled": "auto"},
        "steps_per_print": 2**31 - 1,
    }
    return _merged(settings, engine.deepspeed)


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return `base` with `changes` laid over it, dictionary by dictionary."""
    result = dict(base)
    for key, value in changes.items():
        inner = result.get(key)
        result[key] = _merged(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return result


def _check_deepspeed(name: str) -> None:
    if importlib.util.find_spec("deepspeed") is None:
        raise ConfigError(
            [Problem("engine", "needs the package deepspeed", name, "pip install 'ssd-toolkit[deepspeed]'")]
        )

"""Names of the engines and what each of them can do; no torch, so that validation stays light."""

from __future__ import annotations

DEEPSPEED = ("deepspeed_zero1", "deepspeed_zero2", "deepspeed_zero3")
ENGINES = ("single", "ddp", "fsdp2", *DEEPSPEED)
SHARDING = ("fsdp2", *DEEPSPEED)
"""Engines that cut optimizer state into pieces: an optimizer there never sees a whole matrix."""
ELASTIC = ("single", "ddp", "fsdp2")
"""Engines whose checkpoints can be continued with another number of processes."""


def zero_stage(name: str) -> int:
    """Return the ZeRO stage (Rajbhandari et al., 2020) of engine `name`, 0 if it is not DeepSpeed's."""
    return DEEPSPEED.index(name) + 1 if name in DEEPSPEED else 0

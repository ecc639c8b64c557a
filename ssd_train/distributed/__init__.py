"""The engines: how processes share weights, gradients and optimizer state.

`single` and `ddp` keep a whole copy on every process, `fsdp2` and `deepspeed_zero3` shard everything,
`deepspeed_zero1` and `deepspeed_zero2` shard optimizer state, and gradients with it.
"""

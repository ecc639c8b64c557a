"""Masked-diffusion models: states, one deterministic step, calls that check many states."""

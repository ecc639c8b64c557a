"""TODO diffusion."""

"""Evaluate a masked-diffusion checkpoint."""

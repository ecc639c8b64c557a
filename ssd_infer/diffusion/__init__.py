"""Decode masked-diffusion language models, and let them draft for themselves without changing a token."""

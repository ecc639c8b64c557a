"""Families of causal models: where their parts are, and what happens before, between and after the layers."""

"""Attention and products as they are fastest here; same function as the model's own."""

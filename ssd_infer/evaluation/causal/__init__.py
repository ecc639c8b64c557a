"""Evaluate a checkpoint that decodes token by token."""

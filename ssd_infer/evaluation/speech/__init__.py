"""Evaluate a speech checkpoint."""

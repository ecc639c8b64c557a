"""TODO checkpoint."""

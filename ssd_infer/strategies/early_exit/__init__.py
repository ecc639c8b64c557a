"""TODO early_exit."""

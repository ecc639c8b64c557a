"""TODO runs."""

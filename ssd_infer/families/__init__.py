"""TODO families."""

"""TODO config."""

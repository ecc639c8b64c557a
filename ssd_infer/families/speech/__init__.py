"""TODO speech."""

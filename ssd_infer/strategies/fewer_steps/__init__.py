"""TODO fewer_steps."""

"""TODO offload."""

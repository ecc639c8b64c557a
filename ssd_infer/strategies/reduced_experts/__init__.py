"""TODO reduced_experts."""

"""TODO layerskip."""

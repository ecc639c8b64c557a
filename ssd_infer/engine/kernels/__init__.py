"""TODO kernels."""

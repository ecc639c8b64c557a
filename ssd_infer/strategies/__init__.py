"""TODO strategies."""

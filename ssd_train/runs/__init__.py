"""A run and what it leaves: checkpoints, identity, metrics, reports, tracking."""

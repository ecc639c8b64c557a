"""Routed experts on disk, and a bounded set of them in memory."""

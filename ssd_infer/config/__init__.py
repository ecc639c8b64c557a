"""Settings and their checks; nothing here imports torch."""

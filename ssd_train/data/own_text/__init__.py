"""Text that the target itself writes: prompts, continuations that survive a kill, and their mixture with a corpus."""

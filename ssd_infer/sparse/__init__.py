"""Sparse attention over the target's own cache: which slots a draft reads, and how attention reads them."""

"""TODO ngram."""

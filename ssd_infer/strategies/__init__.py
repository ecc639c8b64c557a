"""Draft strategies, one room each."""

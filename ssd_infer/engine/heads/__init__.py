"""Draft heads: how a draft turns hidden states into scores of all tokens, or of some."""

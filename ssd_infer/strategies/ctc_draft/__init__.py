"""TODO ctc_draft."""

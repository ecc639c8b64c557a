"""TODO asr_ctc."""

"""Speech models: audio, plain decoding, error rates."""

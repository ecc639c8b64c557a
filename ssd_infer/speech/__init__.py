"""Speech recognition that drafts with its own CTC head: audio, gates, decoders, calibration."""

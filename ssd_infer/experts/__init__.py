"""Mixture-of-experts decoding: routers that pick fewer experts, and experts that live on disk."""

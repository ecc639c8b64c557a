"""TODO sparse_attention."""

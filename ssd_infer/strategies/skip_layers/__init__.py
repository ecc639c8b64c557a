"""TODO skip_layers."""

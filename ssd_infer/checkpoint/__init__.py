"""What a directory with a model in it is: loading, kinds, manifest, provenance."""

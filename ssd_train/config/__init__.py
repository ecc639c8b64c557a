"""Typed configuration of training: schema, Hydra registration and validation."""

"""The training loop: one thin subclass of transformers' Trainer, optimizers, progress, stopping."""

"""The version of this toolkit."""

__version__ = "0.1.0"

"""Holdfast keeps large training jobs training."""

__version__ = "0.1.0"

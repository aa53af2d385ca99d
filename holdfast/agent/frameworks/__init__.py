"""Frameworks beside PyTorch: what their processes have to know to find each other."""

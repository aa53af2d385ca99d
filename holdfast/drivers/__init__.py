"""Drivers turn the controller's orders into effects, and effects into facts."""

"""Decisions as plain functions: what to do is chosen here, how it is ordered is not."""

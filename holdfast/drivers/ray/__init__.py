"""Nodes of a job on a Ray cluster: one actor each in a placement group, which runs an agent."""

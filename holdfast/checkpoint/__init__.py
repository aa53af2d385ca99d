"""Snapshots: copies of training state in memory that outlive the worker.

`arena` is the memory, `codec` turns state into plain data and leaves, `tensors` copies the leaves,
`choose` decides which snapshot all ranks continue from. Only `tensors` imports torch, so that an
agent can look into an arena without paying for it.
"""

"""Data sets of the job on this node: `handle` in the agent, `__main__` the process that fetches."""

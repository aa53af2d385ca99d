"""Data sets in the cache of a machine: fetched once, verified, shared by attempts and jobs.

`source` lists and reads where a data set comes from, `cache` keeps what was fetched and makes room,
`fetch` brings one from there to here; `python -m holdfast.datasets` is the process in which an
agent has that done. `place` tells a script where a data set lies.
"""

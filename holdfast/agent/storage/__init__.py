"""The storage process of a node: what is done with snapshots after the worker has written them.

One child of the agent, without torch, beside the workers and never in their way. It seals what they
wrote, sends private parts to other nodes, keeps copies for these, and saves to durable tiers. It
holds nothing that cannot be found again in arenas and storage pages, so it may be killed at any
moment and started anew: training does not notice.
"""

"""Snapshots in memory and checkpoints in durable tiers.

In memory: `arena` holds copies and `seal` their checksums, `codec` and `index` say what a copy
consists of, `storage_page` is what a worker and the storage process of its node tell each other,
`free_memory` what fits, `copy_placement` who keeps copies for whom, `choose` what all ranks
continue from.

On storage: `manifest` is the format, `stores` the protocol of a place, `folder` and `objects` its
two kinds, `open_store` picks one; `save` writes and commits, `catalog` finds, reads and verifies,
`upkeep` and `retention` thin out and copy, `lineage` says what counts, `schedule` when a tier is
due.

With torch: `tensors` copies leaves into an arena, `streams` does so beside training on a GPU,
`pieces`, `export` and `dcp` give a checkpoint to others. Nothing else here imports torch, so that
an agent or the command line can look into all of it without paying for that.
"""

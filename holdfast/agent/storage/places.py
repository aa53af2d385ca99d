"""Where the durable tiers of a node are, and what its workers are told of them.

On Kubernetes the manifests have said where; elsewhere the job file has. The local tier is a disk of
one node: where several nodes share one machine, each takes the first folder that no other holds, so
that a node which comes back finds what was there before.
"""

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from holdfast.agent.notes import note
from holdfast.agent.storage.protocol import DurablePlace
from holdfast.checkpoint.settings import PLACES, VARIABLE, CheckpointSettings, TierRule
from holdfast.checkpoint.tiers import Tier
from holdfast.spec import Job
from holdfast.spec.storage import ArchiveTier, LocalTier, SharedTier

ADDRESS = "HOLDFAST_STORAGE_ADDRESS"
NODES_MAX = 64  # of one job on one machine


def places_of(job: Job, environ: Mapping[str, str]) -> tuple[DurablePlace, ...]:
    """The durable tiers of this node, the quickest first."""
    said = job.checkpoints.on_laptop(job.name)
    found = []
    for tier in Tier:
        section = section_of(job, tier)
        where = environ.get(PLACES[tier]) or said.get(tier.name.lower())
        if section is not None and where:
            own = _claimed(where) if tier is Tier.LOCAL else where
            found.append(
                DurablePlace(
                    tier=tier,
                    where=own,
                    keep=section.keep,
                    max_bytes_per_s=section.max_bytes_per_s,
                    fresh=job.checkpoints.fresh or "",
                )
            )
    return tuple(found)


def section_of(job: Job, tier: Tier) -> LocalTier | SharedTier | ArchiveTier | None:
    """What the job file says about a tier."""
    tiers = job.checkpoints
    return (tiers.local, tiers.shared, tiers.archive)[tier]


def variables(
    job: Job, places: tuple[DurablePlace, ...], address: str, owner: str = ""
) -> dict[str, str]:
    """What the workers find in their environment; `owner` tells the job from others of its name."""
    rules = {place.tier.name.lower(): _rule(section_of(job, place.tier)) for place in places}
    mttf_h = job.recovery.mttf_h
    settings = CheckpointSettings(
        **rules,
        copies=job.snapshots.copies,
        beside=job.snapshots.beside,
        mttf_s=None if mttf_h is None else mttf_h * 3600,
        owner=owner,
        take_over=job.checkpoints.take_over,
    )
    where = {PLACES[place.tier]: place.where for place in places}
    if (start := job.checkpoints.start_from) is not None:
        where["HOLDFAST_RESTORE_FROM"] = start
    if (word := job.checkpoints.fresh) is not None:
        where["HOLDFAST_RESTORE_FRESH"] = word
    archive = job.checkpoints.archive
    if archive is not None and archive.endpoint is not None:
        where["AWS_ENDPOINT_URL"] = archive.endpoint
    return {**where, ADDRESS: address, VARIABLE: msgspec.json.encode(settings).decode()}


def _rule(section: LocalTier | SharedTier | ArchiveTier | None) -> TierRule:
    assert section is not None
    every_s = None if section.every_s == "auto" else section.every_s
    steps = section.golden_every_steps if isinstance(section, ArchiveTier) else None
    return TierRule(every_s=every_s, every_steps=steps)


def _claimed(where: str) -> str:
    """A folder below that is ours as long as we live; the first one if locks do not work there."""
    first = Path(where, "node-0")
    try:
        for number in range(NODES_MAX):
            folder = Path(where, f"node-{number}")
            folder.mkdir(parents=True, exist_ok=True)
            fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return str(folder)
            except BlockingIOError:
                os.close(fd)
    except OSError as error:
        note(f"agent: checkpoints.local: {where}: {error.strerror}")
    return str(first)

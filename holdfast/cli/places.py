"""Where the durable tiers of a job of this machine are.

The disks of nodes are folders `node-N` side by side: each is a place of its own.
"""

from pathlib import Path
from typing import Any, NamedTuple


class TierPlace(NamedTuple):
    """One place of a job."""

    tier: str
    where: str  # folder or URL
    options: dict[str, Any]  # of the client for the URL


def tier_places(folder: Path) -> list[TierPlace]:
    """The places of the job in this folder, the quickest tier first. Raises `Error`
    job-not-found."""
    from holdfast.drivers.records import load_job

    job = load_job(folder)
    tiers = job.checkpoints.on_laptop(job.name)
    found = []
    for tier, where in tiers.items():
        archive = job.checkpoints.archive
        endpoint = archive.endpoint if tier == "archive" and archive is not None else None
        options = {"client_kwargs": {"endpoint_url": endpoint}} if endpoint else {}
        places = _of_nodes(Path(where)) if tier == "local" else [where]
        found += [TierPlace(tier, place, options) for place in places]
    return found


def _of_nodes(folder: Path) -> list[str]:
    return [str(path) for path in sorted(folder.glob("node-[0-9]*")) if path.is_dir()]

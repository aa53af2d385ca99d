"""Folders and names inside a pod that would be taken twice."""

from collections import Counter
from collections.abc import Iterator

from holdfast.drivers.kubernetes.manifests import storage
from holdfast.drivers.kubernetes.manifests.request import Request
from holdfast.errors import Error
from holdfast.spec import Job

OURS = ("/dev/shm", storage.JOB, storage.TOKEN, storage.HOME)


def problems(request: Request) -> Iterator[Error]:
    """One problem for each folder or name that two things want."""
    places = mounts(request.job)
    for folder, paths in places.items():
        if len(paths) > 1 or folder in OURS:
            yield _taken(folder, [*paths, *(["Holdfast's own"] if folder in OURS else [])])
    yield from _tiers(request.job)
    for path, names in _named(request.job).items():
        for name, count in Counter(names).items():
            if count > 1:
                yield _twice(path, name)


def _tiers(job: Job) -> Iterator[Error]:
    """What a laptop needs not to say, and a cluster does."""
    local, shared = job.checkpoints.local, job.checkpoints.shared
    if local is not None and local.host_path is None and local.pvc_class is None:
        yield _nowhere("checkpoints.local", "host_path or pvc_class")
    if shared is not None and shared.pvc is None:
        yield _nowhere("checkpoints.shared", "pvc")
    for path, tier in (("checkpoints.local.path", local), ("checkpoints.shared.path", shared)):
        if tier is not None and not tier.mount.startswith("/"):
            yield Error(
                "settings-conflict",
                f"{path}: {tier.mount} is not absolute",
                why="in a pod, paths cannot be relative to the job file",
                help=f"make {path} absolute, or remove it from the job file for the cluster",
            )


def _nowhere(path: str, keys: str) -> Error:
    return Error(
        "settings-conflict",
        f"{path}: no volume is configured for this path",
        why="on a cluster, every tier needs a volume",
        help=f"add {keys} to {path}",
    )


def mounts(job: Job) -> dict[str, list[str]]:
    """Who wants something mounted at which folder."""
    wanted = [(f"secrets[{i}].path", s.path) for i, s in enumerate(job.secrets)]
    wanted += [(f"datasets[{i}].path", d.path) for i, d in enumerate(job.datasets) if not d.url]
    caches = {one.cached.folder: f"datasets ({one.name}).cache" for one in storage.fetched(job)}
    wanted += [(path, folder) for folder, path in caches.items()]
    tiers = job.checkpoints
    wanted += [("checkpoints.local.path", tiers.local.mount)] if tiers.local else []
    wanted += [("checkpoints.shared.path", tiers.shared.mount)] if tiers.shared else []
    found: dict[str, list[str]] = {}
    for path, folder in wanted:
        if folder is not None:
            found.setdefault(folder.rstrip("/") or "/", []).append(path)
    return found


def _named(job: Job) -> dict[str, list[str]]:
    """Names that have to be unique."""
    return {
        "datasets": [dataset.name for dataset in job.datasets],
        "resources.claims": [claim.name for claim in job.resources.claims],
        "secrets": [secret.name for secret in job.secrets if secret.path],
        "scheduling.spread": [spread.key for spread in job.scheduling.spread],
    }


def _taken(folder: str, paths: list[str]) -> Error:
    return Error(
        "settings-conflict",
        f"{paths[0]}: {folder} is also used by {' and '.join(paths[1:])}",
        why="only one volume can be mounted at a path",
        help=f"use another folder for {paths[0]}",
    )


def _twice(path: str, name: str) -> Error:
    return Error(
        "settings-conflict",
        f"{path}: duplicate name {name}",
        why="volumes and claims of a pod are identified by their names",
        help="use a unique name for each, or keep one",
    )

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
                why="in a pod there is no folder of the job file to start from",
                help=f"give {path} an absolute folder, or leave it out in the file for the cluster",
            )


def _nowhere(path: str, keys: str) -> Error:
    return Error(
        "settings-conflict",
        f"{path}: nothing says what is mounted there",
        why="on a cluster a folder is on a volume",
        help=f"add {keys} to {path}",
    )


def mounts(job: Job) -> dict[str, list[str]]:
    """Who wants something mounted at which folder."""
    wanted = [(f"secrets[{i}].path", s.path) for i, s in enumerate(job.secrets)]
    wanted += [(f"datasets[{i}].path", d.path) for i, d in enumerate(job.datasets) if not d.url]
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
        f"{paths[0]}: {folder} is taken by {' and '.join(paths[1:])}",
        why="one folder of a pod can hold one volume",
        help=f"give {paths[0]} a folder of its own",
    )


def _twice(path: str, name: str) -> Error:
    return Error(
        "settings-conflict",
        f"{path}: {name} is there twice",
        why="volumes and claims of a pod are known by their names",
        help="give each a name of its own, or keep one",
    )

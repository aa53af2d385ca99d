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
    for path, names in _named(request.job).items():
        for name, count in Counter(names).items():
            if count > 1:
                yield _twice(path, name)


def mounts(job: Job) -> dict[str, list[str]]:
    """Who wants something mounted at which folder."""
    wanted = [(f"secrets[{i}].path", s.path) for i, s in enumerate(job.secrets)]
    wanted += [(f"datasets[{i}].path", d.path) for i, d in enumerate(job.datasets) if not d.url]
    tiers = job.checkpoints
    wanted += [("checkpoints.local.path", tiers.local.path)] if tiers.local else []
    wanted += [("checkpoints.shared.path", tiers.shared.path)] if tiers.shared else []
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

"""Names that will not fit: what an engine appends to the job's name has to fit too.

A pod's host name is a DNS label of at most 63 characters; Kubernetes cuts a longer one without a
word, and two nodes then answer to the same name. A Service's name has to begin with a letter.
"""

from collections.abc import Iterator

from holdfast.drivers.kubernetes.manifests.engines import mpijob
from holdfast.drivers.kubernetes.manifests.groups import groups
from holdfast.drivers.kubernetes.manifests.names import LONGEST
from holdfast.drivers.kubernetes.manifests.request import Request
from holdfast.errors import Error
from holdfast.spec.cluster import Engine

OWN_LONGEST: dict[Engine, int] = {"cronjob": 52, "rayjob": 47}
"""Of the engine's own object: Jobs of a CronJob get 11 characters more; KubeRay refuses more."""
TIME = "-12345678"  # what a CronJob appends: minutes since 1970
RANDOM = "-abcde"  # what JobSet reckons with, as Jobs append it to the names of their pods


def problems(request: Request) -> Iterator[Error]:
    """Problems with the name of the job and of what becomes a volume."""
    longest = longest_name(request)
    if len(longest) > LONGEST:
        yield _too_long("name", longest, LONGEST, len(longest) - LONGEST)
    most = OWN_LONGEST.get(request.engine, LONGEST)
    if most < len(request.name):
        yield _too_long("name", request.name, most, len(request.name) - most)
    if request.name[0].isdigit():
        yield Error(
            "name-invalid",
            f"name: {request.name} starts with a digit",
            why="the job's Service is named after it, and names of Services must start with a "
            "letter",
            help=f"rename it, for example to run-{request.name}"[: LONGEST + 40],
        )
    yield from _volumes(request)


def longest_name(request: Request) -> str:
    """The longest of the host names and labels that come of the job's name."""
    found = [f"{request.name}{tail}" for tail in _tails(request)]
    if request.managed:
        found.append(f"{request.name}-controller")
    return max(found, key=len)


def _tails(request: Request) -> list[str]:
    trials = request.job.sweep.size if request.job.sweep is not None else 1
    last = max(request.pods, trials) - 1
    counts = groups(request)
    match request.engine:
        case "pods":
            return [f"-{last}", *(f"-{role}" for role in counts if role != "node")]  # Kueue's group
        case "job":
            beside = [f"-{role}-{count - 1}" for role, count in counts.items() if role != "node"]
            return [f"-{last}", *beside]
        case "cronjob":
            return [f"-{last}"] if request.managed else [f"{TIME}-{last}"]
        case "jobset" | "trainjob":
            parts = counts | ({"launcher": 1} if mpijob.through_sshd(request) else {})
            return [f"-{role}-0-{count - 1}{RANDOM}" for role, count in parts.items()]
        case "rayjob":
            return [f"{RANDOM}-head-svc"]  # names of its pods are cut
        case _:
            return [f"-{role}-{count - 1}" for role, count in _roles(request).items() if count]


def _roles(request: Request) -> dict[str, int]:
    """Most pods by role, where the engine numbers them so."""
    counts, beside = groups(request), request.job.roles
    match request.engine:
        case "tfjob":
            return {"worker": request.pods, "chief": 1, "ps": beside.ps, "evaluator": 1}
        case "mpijob":
            return {"worker": request.pods, "launcher": 1}
        case "volcano" if not request.managed:
            first = {"pytorch": "master", "mpi": "launcher"}.get(request.job.trains_with)
            return {"worker": request.pods, first: 1} if first else {"node": request.pods}
        case "volcano":
            return counts
        case _:
            return {"worker": request.pods, "master": 1}


def _volumes(request: Request) -> Iterator[Error]:
    """Volumes and init containers are named after what they hold."""
    job = request.job
    named = [(f"datasets[{i}].name", f"fetch-{d.name}") for i, d in enumerate(job.datasets)]
    named += [
        (f"secrets[{i}].name", f"secret-{s.name}") for i, s in enumerate(job.secrets) if s.path
    ]
    for path, name in named:
        if len(name) > LONGEST:
            yield _too_long(path, name, LONGEST, len(name) - LONGEST)
        elif "." in name:
            yield Error(
                "name-invalid",
                f"{path}: {name} has a dot",
                why="a volume is named after it, and names of volumes are DNS labels",
                help="give the Secret a name without dots, or use env: instead of path:",
            )


def _too_long(path: str, name: str, longest: int, excess: int) -> Error:
    return Error(
        "name-invalid",
        f"{path}: {name} has {len(name)} characters, the maximum is {longest}",
        why="it becomes a DNS label; longer names are rejected, or truncated so that two nodes "
        "share one",
        help=f"shorten the name by at least {excess}",
    )

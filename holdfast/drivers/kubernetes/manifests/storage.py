"""Volumes of a pod: shared memory, the job and its token, secrets, data sets, checkpoint tiers.

The script learns where things are from variables, so that the same script runs on a laptop: folders
of checkpoint tiers carry the name of the job, because the storage behind them is shared by many.
"""

import hashlib
import json
import re
from dataclasses import dataclass, field
from fractions import Fraction
from importlib.resources import files

from holdfast.drivers.kubernetes.manifests import security
from holdfast.drivers.kubernetes.manifests.names import token_name
from holdfast.drivers.kubernetes.manifests.part import Part
from holdfast.drivers.kubernetes.manifests.request import Body, Request
from holdfast.spec import Job
from holdfast.spec.quantities import amount, in_bytes
from holdfast.spec.storage import Dataset, DatasetCache, data_variable

JOB = "/etc/holdfast/job"  # folder with job.yaml
TOKEN = "/etc/holdfast/token"  # folder with token
CODE = "/code"  # folder with the code that was shipped
BUNDLE = "/etc/holdfast/code"  # folder with the archive
PART_BYTES = 700_000  # base64 makes a third more of it, and a ConfigMap has 1 MiB
PARTS = re.compile(r"-[0-9a-f]{12}x(\d+)$")  # end of a name that stands for several ConfigMaps
UNPACK = """\
import glob, io, sys, tarfile
parts = sorted(glob.glob(sys.argv[1] + "*"))
code = io.BytesIO(b"".join(open(part, "rb").read() for part in parts))
tarfile.open(fileobj=code).extractall(sys.argv[2], filter="data")
"""
HOME = "/var/run/holdfast"  # what an agent writes: logs of its workers, and how often it started
CACHE = f"{HOME}/datasets"  # where agents keep data sets unless told otherwise
SHM_PER_WORKER = 2 << 30  # bytes: NCCL's buffers and the queues of data loaders
RUN, TRIAL = "JOB_NAME", "HOLDFAST_TRIAL"  # variables: this start of a CronJob, this trial
SLOTS = 2  # snapshots that are kept at a time (docs/decisions/0004)
READ_SLOTS = 3  # where durable tiers or several nodes read them besides
SECRET_MODE = 0o440  # root and the pod's group


@dataclass
class Mounted:
    """What storage adds to a pod and its main container."""

    volumes: list[Body] = field(default_factory=list)
    mounts: list[Body] = field(default_factory=list)
    env: list[Body] = field(default_factory=list)
    env_from: list[Body] = field(default_factory=list)
    before: list[Body] = field(default_factory=list)  # init containers

    def add(self, name: str, path: str, source: Body, *, read_only: bool = False) -> None:
        """A volume and where it is mounted."""
        self.volumes.append({"name": name, **source})
        mount: Body = {"name": name, "mountPath": path}
        self.mounts.append({**mount, "readOnly": True} if read_only else mount)

    def variable(self, name: str, value: str) -> None:
        """A variable of the main container."""
        self.env.append({"name": name, "value": value})


def mounted(request: Request, part: Part) -> Mounted:
    """Everything this pod mounts."""
    found, job = Mounted(), request.job
    if not part.small:
        shm: Body = {"medium": "Memory", "sizeLimit": shm_size(request)}
        found.add("shm", "/dev/shm", {"emptyDir": shm})
    if request.managed:
        _add_job(found, request)
    if job.code is not None:
        _add_code(found, request)
    for secret in job.secrets:
        if secret.path is not None:
            source = {"secretName": secret.name, "defaultMode": SECRET_MODE}
            found.add(f"secret-{secret.name}", secret.path, {"secret": source}, read_only=True)
    if part.data or not part.small:
        for dataset in job.datasets:
            if dataset.source is None:
                _add_dataset(found, request, dataset)
        for cache in {one.cached.folder or CACHE: one.cached for one in fetched(job)}.values():
            _add_cache(found, cache)
        _add_tiers(found, request)
    return found


def _add_job(found: Mounted, request: Request) -> None:
    """The job file, the token that the controller makes (pods wait until it is there), and a place
    for the agent."""
    found.add("job", JOB, {"configMap": {"name": f"{request.name}-job"}}, read_only=True)
    token = {"secretName": token_name(request.name), "defaultMode": SECRET_MODE}
    found.add("token", TOKEN, {"secret": token}, read_only=True)
    found.add("holdfast", HOME, {"emptyDir": {}})


def code_name(request: Request) -> str:
    """Name of the code: it says what is in it, and in how many ConfigMaps if in more than one."""
    if request.code_name:
        return request.code_name
    count = -(-len(request.code) // PART_BYTES)
    name = f"{request.name}-code-{hashlib.sha256(request.code).hexdigest()[:12]}"
    return f"{name}x{count}" if count > 1 else name


def code_maps(request: Request) -> dict[str, str]:
    """Names of the ConfigMaps with the code, in order, and of the one file in each."""
    name = code_name(request)
    several = PARTS.search(name)
    if several is None:
        return {name: "code.tar.gz"}
    return {f"{name}-{i}": f"code.tar.gz.{i:03}" for i in range(int(several[1]))}


def _code_source(request: Request) -> Body:
    maps = list(code_maps(request))
    if len(maps) == 1:
        return {"configMap": {"name": maps[0]}}
    return {"projected": {"sources": [{"configMap": {"name": name}} for name in maps]}}


def _add_code(found: Mounted, request: Request) -> None:
    """Unpacked by the image's own Python, so that it works without Holdfast too."""
    found.volumes.append({"name": "code-bundle", **_code_source(request)})
    found.add("code", CODE, {"emptyDir": {}})
    image = request.job.image
    assert image is not None, "checked before"
    init: Body = {"name": "unpack-code", "image": image.name}
    if image.pull is not None:
        init["imagePullPolicy"] = image.pull
    init["command"] = [image.python, "-c", UNPACK, f"{BUNDLE}/code.tar.gz", CODE]
    init["volumeMounts"] = [
        {"name": "code-bundle", "mountPath": BUNDLE, "readOnly": True},
        {"name": "code", "mountPath": CODE},
    ]
    context = security.container(request)
    found.before.append({**init, "securityContext": context} if context else init)


# ── memory ────────────────────────────────────────────────────────────────────────────────────


def shm_size(request: Request) -> str:
    """Size of `/dev/shm`: what was said, or 2 GiB for each worker."""
    said = request.job.resources.shm
    return in_bytes(SHM_PER_WORKER * request.workers) if said == "auto" else said


def snapshot_bytes(request: Request) -> Fraction:
    """Most memory that snapshots take on a node: slots of each worker's own state, and two more for
    each copy of others' that it keeps, where the state is sharded. 0 if the state's size is not
    given."""
    state = request.job.resources.state
    if state is None or not request.managed:
        return Fraction(0)
    tiers, copies = request.job.checkpoints, request.job.snapshots.copies
    read = tiers.local or tiers.shared or tiers.archive or copies > 1
    return amount(state) * request.workers * ((READ_SLOTS if read else SLOTS) + SLOTS * copies)


# ── data ──────────────────────────────────────────────────────────────────────────────────────


def _add_dataset(found: Mounted, request: Request, dataset: Dataset) -> None:
    name = f"data-{dataset.name}"
    if dataset.url is not None:
        found.variable(data_variable(dataset.name), dataset.url)
        return
    assert dataset.path is not None, "there is no source"
    found.variable(data_variable(dataset.name), dataset.path)
    found.add(name, dataset.path, _source(dataset), read_only=not dataset.writable)
    if dataset.download:
        found.before.append(_fetcher(request, dataset, name))


def fetched(job: Job) -> list[Dataset]:
    """Data sets that agents bring into a cache."""
    return [dataset for dataset in job.datasets if dataset.source is not None]


def _add_cache(found: Mounted, cache: DatasetCache) -> None:
    """The machine's folder, at the same path in the pod, or a volume where agents look anyway."""
    if cache.folder is not None:
        source: Body = {"hostPath": {"path": cache.folder, "type": "DirectoryOrCreate"}}
        number = sum(volume["name"].startswith("data-cache") for volume in found.volumes)
        found.add(f"data-cache-{number}" if number else "data-cache", cache.folder, source)
    elif cache.volume_class is not None:
        found.add("data-cache-own", CACHE, _own_volume(cache.volume_class, cache.size))
    else:
        found.add("data-cache-own", CACHE, {"emptyDir": {"sizeLimit": cache.size}})


def _source(dataset: Dataset) -> Body:
    if dataset.pvc is not None:
        claim: Body = {"claimName": dataset.pvc}
        return {"persistentVolumeClaim": claim if dataset.writable else claim | {"readOnly": True}}
    if dataset.host_path is not None:
        made = dataset.download or dataset.writable
        kind = "DirectoryOrCreate" if made else "Directory"
        return {"hostPath": {"path": dataset.host_path, "type": kind}}
    return {"emptyDir": {"sizeLimit": dataset.size} if dataset.size else {}}


def _fetcher(request: Request, dataset: Dataset, volume: str) -> Body:
    """An init container that downloads, verifies and unpacks."""
    image = request.job.image
    assert image is not None, "checked before"
    source = files(__package__).joinpath("fetch.py").read_text()
    source = source.rpartition('"""\n\n')[2]  # without the module's docstring
    plan = json.dumps([download.model_dump() for download in dataset.download])
    found: Body = {"name": f"fetch-{dataset.name}", "image": image.name}
    if image.pull is not None:
        found["imagePullPolicy"] = image.pull
    assert dataset.path is not None, "there is no source"
    found["command"] = [image.python, "-c", source, dataset.path, plan]
    found["volumeMounts"] = [{"name": volume, "mountPath": dataset.path}]
    context = security.container(request)
    return {**found, "securityContext": context} if context else found


# ── checkpoints ───────────────────────────────────────────────────────────────────────────────


def _add_tiers(found: Mounted, request: Request) -> None:
    """Places by the name of the job and, where many share it, of the run and the trial: nobody may
    go on from what somebody else has trained."""
    job, tiers = request.job, request.job.checkpoints
    own = job.name
    if request.engine == "cronjob" and not request.managed:
        own += f"/$({RUN})"  # which the engine has set
    if job.sweep is not None:
        own += f"/$({TRIAL})"
        found.env.append(_label(TRIAL, "batch.kubernetes.io/job-completion-index"))
    if tiers.local is not None:
        found.add("checkpoints-local", tiers.local.mount, _local_source(job))
        found.variable("HOLDFAST_CHECKPOINT_LOCAL", f"{tiers.local.mount}/{own}")
    if tiers.shared is not None:
        claim = {"persistentVolumeClaim": {"claimName": tiers.shared.pvc}}
        found.add("checkpoints-shared", tiers.shared.mount, claim)
        found.variable("HOLDFAST_CHECKPOINT_SHARED", f"{tiers.shared.mount}/{own}")
    if tiers.archive is not None:
        place = f"{tiers.archive.url.rstrip('/')}/{own}"
        found.variable("HOLDFAST_CHECKPOINT_ARCHIVE", place)
        if tiers.archive.endpoint is not None:
            found.variable("AWS_ENDPOINT_URL", tiers.archive.endpoint)
        if tiers.archive.secret is not None:
            found.env_from.append({"secretRef": {"name": tiers.archive.secret}})


def _label(variable: str, label: str) -> Body:
    return {
        "name": variable,
        "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{label}']"}},
    }


def _local_source(job: Job) -> Body:
    """The machine's own disk, or a volume that is made for the pod and goes with it."""
    local = job.checkpoints.local
    assert local is not None
    if local.host_path is not None:
        return {"hostPath": {"path": local.host_path, "type": "DirectoryOrCreate"}}
    assert local.pvc_class is not None, "checked before"
    return _own_volume(local.pvc_class, local.size)


def _own_volume(storage_class: str, size: str) -> Body:
    """A volume that is made for the pod and goes with it."""
    claim = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": storage_class,
        "resources": {"requests": {"storage": size}},
    }
    return {"ephemeral": {"volumeClaimTemplate": {"spec": claim}}}

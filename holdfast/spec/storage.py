"""Where data comes from and checkpoints go on a cluster."""

import re
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from holdfast.spec.section import Flag, Folder, Label, Object, Quantity, Section, Whole


class Download(Section):
    """A file that is fetched before the workers start."""

    url: str = Field(pattern=r"^(https?|s3|gs)://\S+$")
    """URL of the file."""
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    """Expected SHA-256. A mismatch stops the node before it trains on wrong data."""
    unpack: Flag = False
    """Unpack a tar or zip archive."""


class DatasetCache(Section):
    """Where a fetched data set is kept: on the machine, for all attempts and jobs that name the
    same folder."""

    folder: Folder | None = None
    """A folder of the machine; on Kubernetes a `hostPath` volume that is created if needed.
    Default: `datasets` in HOLDFAST_HOME; on Kubernetes a volume of the pod, which goes with it."""
    volume_class: Object | None = None
    """StorageClass of that volume, as for local PVs. Default: an `emptyDir`. Not with `folder`."""
    size: Quantity = "500Gi"
    """Limit for all data sets in it. To stay below, those that no live job uses are removed, the
    least recently used first."""
    verify: Literal["quick", "full"] = "quick"
    """What is verified when a node starts: `quick` the size and time of every file, and the
    SHA-256 where they have changed; `full` the SHA-256 of every file."""

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if self.folder is not None and self.volume_class is not None:
            raise ValueError("give at most one of folder and volume_class")
        return self


def data_variable(name: str) -> str:
    """The variable that tells a script where this data set lies."""
    return f"HOLDFAST_DATA_{name.upper().replace('-', '_')}"


class Dataset(Section):
    """A folder with data. Exactly one of `pvc`, `host_path`, `url`, `download` and `source` is
    given."""

    name: Label
    """Name of the data set and its volume; the script finds it as HOLDFAST_DATA_NAME."""
    path: Folder | None = None
    """Mount path in the workers. Not with `source`."""
    source: str | None = Field(default=None, pattern=r"^([a-z][a-z0-9+.-]*://\S+|[^:]+)$")
    """Folder, file or URL (`s3://`, `https://` or another that fsspec can list) that the agent of
    each node brings into the cache of its machine before the workers start: once for all attempts
    and jobs. A local run does that, too; there a path is relative to the job file."""
    endpoint: str | None = Field(default=None, pattern=r"^https?://\S+$")
    """Endpoint URL of the store behind `source`, for MinIO and others. Credentials come from
    `secrets` or the service account."""
    manifest: str | None = Field(default=None, min_length=1, max_length=1000)
    """A file in `source`, as `sha256sum` writes it. Only what it names is fetched, and verified."""
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    """Expected SHA-256 of `source`: of its only file or, of several, of the output of `sha256sum`
    for all of them, sorted by name. What is in the cache is then used without asking the source."""
    cache: DatasetCache | None = None
    """The cache for `source`. Default: 500 GiB in the default folder."""
    pvc: Object | None = None
    """A PersistentVolumeClaim that several nodes can read: NFS, Lustre, CephFS, JuiceFS, Fluid, ...
    """
    host_path: Folder | None = None
    """A folder on each machine, as a cache that outlives the pod."""
    url: str | None = Field(default=None, pattern=r"^(s3|gs|az|https?)://\S+$")
    """An object store that the script itself reads; given to it as HOLDFAST_DATA_NAME."""
    download: tuple[Download, ...] = ()
    """Files that init containers download into an ephemeral volume of the pod, or into `host_path`.
    """
    size: Quantity | None = None
    """Size limit of that volume."""
    writable: Flag = False
    """Whether workers may write to it."""

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if self.pvc is not None and (self.host_path is not None or self.download):
            raise ValueError("pvc and host_path or download are mutually exclusive")
        origins = [self.pvc, self.host_path or self.download or None, self.url, self.source]
        if sum(origin is not None for origin in origins) != 1:
            raise ValueError("give exactly one of pvc, host_path, url, download and source")
        if (self.path is None) == (self.source is None):
            raise ValueError("path is needed without source, and chosen by Holdfast with it")
        of_source = ("endpoint", "manifest", "sha256", "cache")
        if self.source is None and (idle := [key for key in of_source if getattr(self, key)]):
            raise ValueError(f"{idle[0]} has an effect with source only")
        if re.match(r"https?://[^/]*@", self.source or ""):
            raise ValueError("source: an http URL must not contain a password; use a signed one")
        return self

    @property
    def cached(self) -> DatasetCache:
        """The cache, said or not."""
        return self.cache or DatasetCache()


Place = Annotated[str, Field(min_length=1, pattern=r"^[^:]+$")]  # a folder
Every = Annotated[Whole, Field(ge=1, le=604_800)] | Literal["auto"]  # seconds
Rate = Annotated[Whole, Field(ge=1 << 20)]  # bytes per second


class LocalTier(Section):
    """Checkpoints on a disk of each node (NVMe)."""

    path: Place | None = None
    """Mount path in the workers. Default: /checkpoints/local. In a local run it is relative to the
    job file, and the tier is used only if this is set."""
    host_path: Folder | None = None
    """Folder on the machine. On Kubernetes exactly one of `host_path` and `pvc_class` is required.
    """
    pvc_class: Object | None = None
    """StorageClass of an ephemeral volume that is created for each pod, as for local PVs."""
    size: Quantity = "500Gi"
    """Size of that volume."""
    every_s: Every = "auto"
    """Time between two checkpoints. `auto`: computed from the cost of a checkpoint and the failure
    rate of nodes."""
    keep: Whole = Field(default=2, ge=1, le=1000)
    """Number of newest checkpoints to keep. Older ones are thinned out progressively."""
    max_bytes_per_s: Rate | None = None
    """Bandwidth limit per node for saving."""

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if self.host_path is not None and self.pvc_class is not None:
            raise ValueError("give exactly one of host_path and pvc_class")
        return self

    @property
    def mount(self) -> str:
        """The folder in a pod."""
        return self.path or "/checkpoints/local"


class SharedTier(Section):
    """Checkpoints on storage that every node mounts."""

    path: Place | None = None
    """Mount path in the workers. Default: /checkpoints/shared. In a local run it is relative to the
    job file, and the tier is used only if this is set."""
    pvc: Object | None = None
    """Name of the PersistentVolumeClaim, access mode ReadWriteMany; needed on Kubernetes."""
    storage_class: Object | None = None
    """StorageClass; if set, the claim is part of the manifests (FSx, EFS, CephFS, JuiceFS, NFS
    classes)."""
    size: Quantity = "1Ti"
    """Size of a claim that is part of the manifests."""
    volume_snapshot_class: Object | None = None
    """VolumeSnapshotClass. If set, one VolumeSnapshot is part of the manifests."""
    every_s: Every = "auto"
    """Time between two checkpoints. `auto`: computed from the cost of a checkpoint and the failure
    rate of nodes."""
    keep: Whole = Field(default=3, ge=1, le=1000)
    """Number of newest checkpoints to keep. Older ones are thinned out progressively."""
    max_bytes_per_s: Rate | None = None
    """Bandwidth limit per node for saving."""

    @property
    def mount(self) -> str:
        """The folder in a pod."""
        return self.path or "/checkpoints/shared"


_NO_STORES = {
    **dict.fromkeys(
        ("file", "local"), "for a folder use checkpoints.shared.path or checkpoints.local.path"
    ),
    "memory": "the memory of a process is not durable",
    **dict.fromkeys(("http", "https"), "it is read-only; for S3 use s3:// with an endpoint"),
}


class ArchiveTier(Section):
    """Checkpoints in an object store."""

    url: str = Field(pattern=r"^[a-z][a-z0-9+.-]*://\S+$")
    """Bucket and prefix: `s3://`, `gs://`, `az://`, `abfs://` or another that fsspec can write."""
    secret: Object | None = None
    """Secret whose keys become environment variables of the client. Default: the service account is
    used."""
    endpoint: str | None = Field(default=None, pattern=r"^https?://\S+$")
    """Endpoint URL of the store, for MinIO and others."""
    every_s: Every = "auto"
    """Time between two checkpoints. `auto`: computed from the cost of a checkpoint and the failure
    rate of nodes."""
    golden_every_steps: Whole | None = Field(default=None, ge=1)
    """Additionally, a checkpoint at each multiple of this many steps."""
    keep: Whole = Field(default=3, ge=1, le=1000)
    """Number of newest checkpoints to keep. Older ones are thinned out progressively."""
    max_bytes_per_s: Rate | None = None
    """Bandwidth limit per node for saving."""

    @model_validator(mode="after")
    def _is_a_store(self) -> Self:
        scheme = self.url.partition("://")[0]
        if scheme in _NO_STORES:
            raise ValueError(f"url: {_NO_STORES[scheme]}")
        return self


class Checkpoints(Section):
    """Durable copies of the training state, tier by tier; the script gets the places as
    HOLDFAST_CHECKPOINT_LOCAL, _SHARED and _ARCHIVE."""

    local: LocalTier | None = None
    """A local disk of each node."""
    shared: SharedTier | None = None
    """Storage that every node mounts."""
    archive: ArchiveTier | None = None
    """An object store. Outside Kubernetes it is used unless it needs a `secret`."""
    start_from: str | None = Field(default=None, min_length=1)
    """Folder or URL with checkpoints of another job to start from, as long as this job has none of
    its own. Also `--from` on the command line."""
    fresh: str | None = Field(default=None, min_length=1, max_length=100)
    """Start from step 0: checkpoints that were saved under a different value, or none, are not
    restored. They are not removed either. With the same value the job resumes as usual. Also
    `--fresh` on the command line, which uses the current time as the value."""
    take_over: Flag = False
    """Continue in a location in which another job of this name, which is still running, saves its
    checkpoints. The other job can no longer save there. Without it such a job ends with
    `checkpoint-in-use`. Jobs that have ended or were killed need nothing of this."""

    def on_laptop(self, name: str) -> dict[str, str]:
        """Where the tiers of the job `name` are outside Kubernetes: tier to folder or URL."""
        mounted = {"local": self.local, "shared": self.shared}
        said = {key: tier.path for key, tier in mounted.items() if tier and tier.path}
        if self.archive is not None and self.archive.secret is None:
            said["archive"] = self.archive.url
        return {tier: f"{place.rstrip('/')}/{name}" for tier, place in said.items()}

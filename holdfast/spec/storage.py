"""Where data comes from and checkpoints go on a cluster."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from holdfast.spec.section import Flag, Folder, Label, Object, Quantity, Section, Whole


class Download(Section):
    """A file that is fetched before the workers start."""

    url: str = Field(pattern=r"^(https?|s3|gs)://\S+$")
    """Where it is."""
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    """What it has to hash to; anything else stops the node before it trains on wrong data."""
    unpack: Flag = False
    """Unpack a tar or zip archive."""


class Dataset(Section):
    """A folder with data. Exactly one of `pvc`, `host_path`, `url` and `download` is given."""

    name: Label
    """Name of the volume."""
    path: Folder
    """Where the workers find it."""
    pvc: Object | None = None
    """A PersistentVolumeClaim that many nodes may read: NFS, Lustre, CephFS, JuiceFS, Fluid, ..."""
    host_path: Folder | None = None
    """A folder of each machine, as a cache that outlives the pod."""
    url: str | None = Field(default=None, pattern=r"^(s3|gs|az|https?)://\S+$")
    """An object store that the script itself reads; given to it as HOLDFAST_DATA_NAME."""
    download: tuple[Download, ...] = ()
    """Files fetched into a volume of the pod's own, or into `host_path`, by init containers."""
    size: Quantity | None = None
    """Limit of that volume."""
    writable: Flag = False
    """Whether workers may write to it."""

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if self.pvc is not None and (self.host_path is not None or self.download):
            raise ValueError("a pvc excludes host_path and download")
        origins = [self.pvc, self.host_path or self.download or None, self.url]
        if sum(origin is not None for origin in origins) != 1:
            raise ValueError("give exactly one of pvc, host_path, url and download")
        return self


Place = Annotated[str, Field(min_length=1, pattern=r"^[^:]+$")]  # a folder
Every = Annotated[Whole, Field(ge=1, le=604_800)] | Literal["auto"]  # seconds
Rate = Annotated[Whole, Field(ge=1 << 20)]  # bytes per second


class LocalTier(Section):
    """Checkpoints on a disk of each node (NVMe)."""

    path: Place | None = None
    """Folder in which the workers find it: /checkpoints/local where nothing is said. On a laptop
    relative to the job file; there the tier is used only if this is said."""
    host_path: Folder | None = None
    """Folder of the machine. On Kubernetes exactly one of `host_path` and `pvc_class` is given."""
    pvc_class: Object | None = None
    """Storage class of a volume that is made for each pod and goes with it, as for local PVs."""
    size: Quantity = "500Gi"
    """Size of that volume."""
    every_s: Every = "auto"
    """Time between two checkpoints. `auto`: by what they cost and how often nodes fail."""
    keep: Whole = Field(default=2, ge=1, le=1000)
    """Newest checkpoints that are kept; of older ones fewer and fewer."""
    max_bytes_per_s: Rate | None = None
    """Most bandwidth of each node that saving may take."""

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
    """Folder in which the workers find it: /checkpoints/shared where nothing is said. On a laptop
    relative to the job file; there the tier is used only if this is said."""
    pvc: Object | None = None
    """Name of the PersistentVolumeClaim, access mode ReadWriteMany; needed on Kubernetes."""
    storage_class: Object | None = None
    """With it the claim is part of the manifests (FSx, EFS, CephFS, JuiceFS, NFS classes)."""
    size: Quantity = "1Ti"
    """Size of a claim that is part of the manifests."""
    volume_snapshot_class: Object | None = None
    """Class of the VolumeSnapshot that is taken when asked for; part of the manifests, once."""
    every_s: Every = "auto"
    """Time between two checkpoints. `auto`: by what they cost and how often nodes fail."""
    keep: Whole = Field(default=3, ge=1, le=1000)
    """Newest checkpoints that are kept; of older ones fewer and fewer."""
    max_bytes_per_s: Rate | None = None
    """Most bandwidth of each node that saving may take."""

    @property
    def mount(self) -> str:
        """The folder in a pod."""
        return self.path or "/checkpoints/shared"


_NO_STORES = {
    **dict.fromkeys(("file", "local"), "a folder goes under checkpoints.shared or .local, as path"),
    "memory": "memory of one process outlives nothing",
    **dict.fromkeys(("http", "https"), "it can only be read; for S3 it is s3:// with an endpoint"),
}


class ArchiveTier(Section):
    """Checkpoints in an object store."""

    url: str = Field(pattern=r"^[a-z][a-z0-9+.-]*://\S+$")
    """Bucket and prefix: `s3://`, `gs://`, `az://`, `abfs://` or another that fsspec can write."""
    secret: Object | None = None
    """Secret whose keys are the client's variables; without it the service account is used."""
    endpoint: str | None = Field(default=None, pattern=r"^https?://\S+$")
    """Address of the store, for MinIO and others."""
    every_s: Every = "auto"
    """Time between two checkpoints. `auto`: by what they cost and how often nodes fail."""
    golden_every_steps: Whole | None = Field(default=None, ge=1)
    """Besides, a checkpoint at each multiple of this many steps."""
    keep: Whole = Field(default=3, ge=1, le=1000)
    """Newest checkpoints that are kept; of older ones fewer and fewer."""
    max_bytes_per_s: Rate | None = None
    """Most bandwidth of each node that saving may take."""

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
    """A disk of each node."""
    shared: SharedTier | None = None
    """Storage that every node mounts."""
    archive: ArchiveTier | None = None
    """An object store. Outside Kubernetes it is used unless it needs a `secret`."""
    start_from: str | None = Field(default=None, min_length=1)
    """Folder or URL with checkpoints of another job: where this one begins, as long as it has none
    of its own. Also `--from` on the command line."""
    fresh: str | None = Field(default=None, min_length=1, max_length=100)
    """Begin anew: what was saved before under another word, or none, is not gone on from. It is not
    removed either. With the same word the job goes on as ever. Also `--fresh` on the command line,
    which takes the time for the word."""

    def on_laptop(self, name: str) -> dict[str, str]:
        """Where the tiers of the job `name` are outside Kubernetes: tier to folder or URL."""
        mounted = {"local": self.local, "shared": self.shared}
        said = {key: tier.path for key, tier in mounted.items() if tier and tier.path}
        if self.archive is not None and self.archive.secret is None:
            said["archive"] = self.archive.url
        return {tier: f"{place.rstrip('/')}/{name}" for tier, place in said.items()}

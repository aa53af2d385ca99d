"""Where data comes from and checkpoints go on a cluster."""

from typing import Self

from pydantic import Field, model_validator

from holdfast.spec.section import Folder, Label, Object, Quantity, Section


class Download(Section):
    """A file that is fetched before the workers start."""

    url: str = Field(pattern=r"^(https?|s3|gs)://\S+$")
    """Where it is."""
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    """What it has to hash to; anything else stops the node before it trains on wrong data."""
    unpack: bool = False
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
    writable: bool = False
    """Whether workers may write to it."""

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if self.pvc is not None and (self.host_path is not None or self.download):
            raise ValueError("a pvc excludes host_path and download")
        origins = [self.pvc, self.host_path or self.download or None, self.url]
        if sum(origin is not None for origin in origins) != 1:
            raise ValueError("give exactly one of pvc, host_path, url and download")
        return self


class LocalTier(Section):
    """Checkpoints on a disk of each node (NVMe). Exactly one of `host_path` and `pvc_class`."""

    path: Folder = "/checkpoints/local"
    """Where the workers find it."""
    host_path: Folder | None = None
    """Folder of the machine."""
    pvc_class: Object | None = None
    """Storage class of a volume that is made for each pod and goes with it, as for local PVs."""
    size: Quantity = "500Gi"
    """Size of that volume."""

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if (self.host_path is None) == (self.pvc_class is None):
            raise ValueError("give exactly one of host_path and pvc_class")
        return self


class SharedTier(Section):
    """Checkpoints on storage that every node mounts."""

    path: Folder = "/checkpoints/shared"
    """Where the workers find it."""
    pvc: Object
    """Name of the PersistentVolumeClaim, access mode ReadWriteMany."""
    storage_class: Object | None = None
    """With it the claim is part of the manifests (FSx, EFS, CephFS, JuiceFS, NFS classes)."""
    size: Quantity = "1Ti"
    """Size of a claim that is part of the manifests."""
    volume_snapshot_class: Object | None = None
    """Class of the VolumeSnapshot that is taken when asked for; part of the manifests, once."""


class ArchiveTier(Section):
    """Checkpoints in an object store."""

    url: str = Field(pattern=r"^(s3|gs|az|abfs)://\S+$")
    """Bucket and prefix."""
    secret: Object | None = None
    """Secret whose keys are the client's variables; without it the service account is used."""
    endpoint: str | None = Field(default=None, pattern=r"^https?://\S+$")
    """Address of the store, for MinIO and others."""


class Checkpoints(Section):
    """Durable copies of the training state, tier by tier; the script gets the places as
    HOLDFAST_CHECKPOINT_LOCAL, _SHARED and _ARCHIVE."""

    local: LocalTier | None = None
    """A disk of each node."""
    shared: SharedTier | None = None
    """Storage that every node mounts."""
    archive: ArchiveTier | None = None
    """An object store."""

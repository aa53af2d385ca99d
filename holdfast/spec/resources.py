"""What a node of a job is on a cluster: its image, its secrets, its share of a machine."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from holdfast.spec.section import Flag, Folder, Label, Object, Quantity, Section, Variable, Whole


class Image(Section):
    """The container image of every node. Plain text is short for `name`."""

    name: str = Field(min_length=1, max_length=500, pattern=r"^\S+$")
    """Image with its tag or digest, as in `registry.example/train:1.4`."""
    pull: Literal["Always", "IfNotPresent", "Never"] | None = None
    """Image pull policy. Default: Kubernetes decides by the tag."""
    pull_secrets: tuple[Object, ...] = ()
    """Secrets with the registry credentials."""
    workdir: Folder | None = None
    """Folder in the image to which `script` and `workdir` are relative; default: the image's."""
    python: str = Field(default="python", min_length=1)
    """The Python that runs scripts."""
    root: Flag | Literal["auto"] = "auto"
    """Whether containers may run as root. With `true` they run as the image's user, root or not.
    `auto`: managed pods must not, plain pods run as their image's user. Pods that must not also
    meet the `restricted` pod security standard, except for host access."""

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: object) -> object:
        return {"name": value} if isinstance(value, str) else value


class Secret(Section):
    """A Kubernetes Secret that exists: as variables, as files, or both."""

    name: Object
    """Name of the Secret."""
    env: dict[Variable, str] = {}
    """Variable: key in the Secret."""
    all_env: Flag = False
    """Every key of the Secret becomes a variable."""
    path: Folder | None = None
    """Folder in which every key is a file that only the worker can read."""

    @model_validator(mode="after")
    def _used(self) -> Self:
        if not (self.env or self.all_env or self.path):
            raise ValueError("set at least one of env, all_env and path")
        return self


class Claim(Section):
    """Devices by dynamic resource allocation, instead of a counted resource."""

    name: Label
    """Name of the claim in the pod."""
    template: Object | None = None
    """An existing ResourceClaimTemplate. Otherwise one is created from `device_class` and `count`.
    """
    device_class: Object | None = None
    """DeviceClass, as in `gpu.nvidia.com`."""
    count: Whole = Field(default=1, ge=1, le=1024)
    """Devices of that class for each node."""

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if (self.template is None) == (self.device_class is None):
            raise ValueError("give exactly one of template and device_class")
        return self


class Resources(Section):
    """What each node asks for. A node is one pod; several small nodes may share a machine."""

    gpus: Whole = Field(default=0, ge=0, le=1024)
    """Number of GPUs, or TPU chips, per node."""
    gpu_resource: str | None = Field(default=None, pattern=r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$")
    """Resource name of the GPUs: `nvidia.com/mig-3g.40gb`, `nvidia.com/gpu.shared`, `amd.com/gpu`,
    ... Default: the usual name for `device`; of `auto` that is `nvidia.com/gpu`."""
    cpu: Quantity | None = None
    """CPU cores."""
    memory: Quantity | None = None
    """Memory of a node: the workers, `/dev/shm` and the snapshots."""
    ephemeral_storage: Quantity | None = None
    """Ephemeral storage for logs and scratch files."""
    hugepages: dict[Literal["2Mi", "1Gi"], Quantity] = {}
    """Huge pages by their size."""
    extended: dict[Annotated[str, Field(pattern=r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$")], int] = {}
    """Any other extended resource by its name."""
    claims: tuple[Claim, ...] = ()
    """Devices by dynamic resource allocation."""
    shm: Quantity | Literal["auto"] = "auto"
    """Size of `/dev/shm`. `auto`: 2 GiB for each worker, for NCCL and data loaders."""
    state: Quantity | None = None
    """Size of the training state that one worker tracks. If set, `memory` is checked to be large
    enough for the snapshots: two slots of its own state and, if it is sharded, two of a buddy's."""

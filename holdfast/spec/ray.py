"""How a job uses a Ray cluster: which one, where its nodes go there, and the head of its own."""

from typing import Annotated, Literal

from pydantic import Field

from holdfast.spec.section import Numeric, Quantity, Section


class Ray(Section):
    """A Ray cluster, for `holdfast run --on ray` and, what is said of its head, engine `rayjob`;
    elsewhere this is left alone. What each node asks for is under `resources`."""

    address: str = Field(default="auto", min_length=1, max_length=500, pattern=r"^\S+$")
    """Address of the cluster, HOST:PORT; `auto`: the one that this machine belongs to, or that of
    the variable RAY_ADDRESS. The command runs on a machine of the cluster."""
    strategy: Literal["STRICT_SPREAD", "SPREAD", "PACK", "STRICT_PACK"] = "STRICT_SPREAD"
    """Strategy of the placement group: `STRICT_SPREAD` puts every node and spare on another machine
    of Ray, `SPREAD` if there are enough; `PACK` puts them on as few as possible."""
    resources: dict[
        str,
        Annotated[float, Field(gt=0, le=1_000_000, allow_inf_nan=False), Numeric],
    ] = {}
    """Custom resources of Ray that each node takes, by their name."""
    head_cpu: Quantity = "2"
    """CPU of the head of a RayJob's cluster. Ray starts no workers there."""
    head_memory: Quantity = "8Gi"
    """Memory of the head of a RayJob's cluster."""

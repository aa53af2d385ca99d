"""What an engine asks of a pod: everything in which one kind of pod differs from another."""

from dataclasses import dataclass
from typing import Literal

from holdfast.drivers.kubernetes.manifests.request import Body


@dataclass(frozen=True)
class Part:
    """One kind of pod of a job. What is not said comes from the job description."""

    role: str = "node"  # node · spare · launcher · submitter · … (names.ROLE)
    container: str = "main"  # some operators look for a name of their own
    command: tuple[str, ...] = ()  # of the main container; none: the image's
    restart: Literal["Never", "OnFailure", "Always"] | None = "Never"  # None: the engine's business
    port: tuple[str, int] | None = None  # name and number of the engine's port
    env: tuple[Body, ...] = ()  # of the engine, before the user's
    subdomain: str | None = None  # headless Service that gives the pods names
    small: bool = False  # a process beside the nodes: no GPUs, no network cards, no data
    cpu: str | None = None  # of a small one
    memory: str | None = None
    data: bool = False  # a small one that reads data and checkpoints all the same

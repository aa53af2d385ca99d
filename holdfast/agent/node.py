"""Which node this agent is, and what depends on where it runs."""

from dataclasses import dataclass
from pathlib import Path

from holdfast.agent.pod_log import PodLog


@dataclass(frozen=True)
class NodeIdentity:
    """Which node this is."""

    node: str
    name: str
    address: str
    folder: Path  # of the job


@dataclass(frozen=True)
class AgentOptions:
    """What depends on where the agent runs; as it stands, for a process of a laptop."""

    let_go: int = 0  # exit status when the controller named none
    broken: int = 1  # and after a fault of ours
    pod_log: PodLog | None = None  # where output of workers is shown besides the files
    store_ports: tuple[int, ...] = ()  # none: any
    storage_port: int = 0  # 0: any
    attempts_kept: int | None = None  # of which there are logs; None: all
    draws: bool = True  # the curve, where its folder is the job's


ON_A_LAPTOP = AgentOptions()

"""The parts of a node that its agent puts together, and that attempts work with."""

from dataclasses import dataclass

from holdfast.agent.code_delivery import CodeDelivery
from holdfast.agent.controller_connection import ControllerConnection
from holdfast.agent.health.watch import HealthWatch
from holdfast.agent.job_versions import JobVersions
from holdfast.agent.node_end import NodeEnd
from holdfast.agent.node_processes import NodeProcesses
from holdfast.agent.progress_watch import ProgressWatch
from holdfast.agent.ready_versions import ReadyVersions
from holdfast.agent.store_offer import StoreOffer
from holdfast.agent.tasks import AgentTasks
from holdfast.agent.urgent_saves import UrgentSaves
from holdfast.agent.warm_up import WarmUp
from holdfast.spec import Job


@dataclass(frozen=True)
class NodeParts:
    """One of each."""

    node: str
    job: Job
    versions: JobVersions
    code: CodeDelivery
    controller: ControllerConnection
    watch: ProgressWatch
    health: HealthWatch
    processes: NodeProcesses
    ready: ReadyVersions
    offer: StoreOffer
    saves: UrgentSaves
    warm_up: WarmUp
    tasks: AgentTasks
    end: NodeEnd

"""The parts of a node that its agent puts together, and that attempts work with."""

from dataclasses import dataclass

from holdfast.agent.farewell import Farewell
from holdfast.agent.link import Link
from holdfast.agent.node_end import NodeEnd
from holdfast.agent.store_offer import StoreOffer
from holdfast.agent.supply import Supply
from holdfast.agent.tasks import AgentTasks
from holdfast.agent.warm_up import WarmUp
from holdfast.agent.watch import Watch
from holdfast.spec import Job


@dataclass(frozen=True)
class NodeParts:
    """One of each."""

    node: str
    job: Job
    link: Link
    watch: Watch
    supply: Supply
    offer: StoreOffer
    saves: Farewell
    warm_up: WarmUp
    tasks: AgentTasks
    end: NodeEnd

"""Takes away the pods of nodes that were given up, for as long as it takes.

Nothing waits for a pod's end: whatever an old attempt still does is ignored, because each attempt
has a number, a rendezvous store and connections of its own. A pod is evicted, because some engines
count a plain deletion as a failure, and deleted where that is forbidden; and one of a dead machine,
which would stay for ever, is dropped once the cluster itself says that nothing runs there any more.
"""

import asyncio
from collections.abc import Coroutine

from holdfast.actions import Fence
from holdfast.drivers.kubernetes.cluster import PODS, ApiError, Cluster, DeniedError
from holdfast.drivers.kubernetes.kept_logs import KeptLogs
from holdfast.drivers.kubernetes.left_machines import Machines
from holdfast.drivers.kubernetes.pods import Pod
from holdfast.drivers.kubernetes.roster import Roster
from holdfast.drivers.kubernetes.supply import RETRY_LAST_S, RETRY_S
from holdfast.drivers.kubernetes.talk import Complaint, say
from holdfast.shell.host import cancelled

FENCED_S = 5.0  # between two looks whether a machine is known to be dead


class Removal:
    """Work on pods that goes on in the background until it succeeds."""

    def __init__(
        self, cluster: Cluster, roster: Roster, machines: Machines, output: KeptLogs
    ) -> None:
        self._cluster, self._roster = cluster, roster
        self._machines, self._output = machines, output
        self._tasks: set[asyncio.Task[None]] = set()
        self._complain = Complaint()

    def remove(self, order: Fence) -> None:
        """The pod of this node, unless a later life of it goes on there, or begins."""
        pod = self._roster.alone(order.node)
        begins = self._roster.restarts.goes_on(order.node) and not order.blamed
        if pod is None or begins:
            return
        machine = pod.spec.node_name
        if order.blamed and machine:
            self.keep(self._machines.leave(machine, order.reason))
        self.keep(self._remove(pod))

    async def _remove(self, pod: Pod) -> None:
        """Until it is gone: a deletion that was answered and never began is asked for again."""
        await self._output.glance(pod)
        wait_s = RETRY_S
        while (there := self._roster.pods.get(pod.uid)) is not None:
            try:
                await (self._force(there) if there.leaving else self._ask(there))
                await asyncio.sleep(FENCED_S)
                wait_s = RETRY_S
            except ApiError as error:
                say(f"pod {pod.metadata.name} cannot be removed yet: {error}")
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, RETRY_LAST_S)

    async def _ask(self, pod: Pod) -> None:
        name = pod.metadata.name
        try:
            evicted = await self._cluster.evict(name, uid=pod.uid, grace_s=1)
        except DeniedError as error:
            self._complain(f"pods are deleted because they cannot be evicted: {error.reason}")
            evicted = False
        if not evicted:
            await self._cluster.delete(PODS, name, uid=pod.uid, grace_s=1)

    async def _force(self, pod: Pod) -> None:
        if await self._machines.fenced(pod.spec.node_name):
            await self._cluster.delete(PODS, pod.metadata.name, uid=pod.uid, grace_s=0)

    def keep(self, work: Coroutine[object, object, None]) -> None:
        """Do this in the background; a failure is said."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            say(f"a task failed: {error!r}")

    async def close(self) -> None:
        """Leave it as it is."""
        await cancelled(*self._tasks)

"""How many pods a queue has admitted, of a job that may train with fewer than it has asked for.

Kueue admits a batch Job in part by making it smaller before it lets it run, and leaves it so until
it is admitted anew. An elastic job trains on what there is from the start, instead of waiting for
nodes that will not come; after another admission, on what that has brought.
"""

import asyncio
from collections.abc import Callable

from holdfast.controller import State
from holdfast.drivers.kubernetes.cluster import JOBS, ApiError, Cluster
from holdfast.drivers.kubernetes.engine_size import size_in
from holdfast.drivers.kubernetes.manifests.request import Body, Request
from holdfast.drivers.kubernetes.talk import Complaint
from holdfast.events import ScaleRequested

LOOK_S = 5.0
BY = "Kueue's partial admission"


class AdmittedSize:
    """Of one job. `put` hears of each other size."""

    def __init__(
        self,
        cluster: Cluster,
        request: Request,
        state: State,
        put: Callable[[ScaleRequested], None],
    ) -> None:
        self._cluster, self._request, self._state, self._put = cluster, request, state, put
        self._complain = Complaint()

    @property
    def may_differ(self) -> bool:
        """Whether fewer pods than asked for may be admitted, and can train."""
        job, kueue = self._request.job, self._request.job.scheduling.kueue
        partial = kueue is not None and kueue.partial and self._request.engine == "job"
        return partial and job.elasticity is not None

    async def run(self) -> None:
        """For ever."""
        while True:
            try:
                self.look(await self._cluster.get(JOBS, self._request.name))
                self._complain("")
            except ApiError as error:
                self._complain(f"how many pods Kueue has admitted cannot be read: {error}")
            await asyncio.sleep(LOOK_S)

    def look(self, body: Body) -> None:
        """The Job as it is."""
        if body["spec"].get("suspend"):
            return  # not admitted yet, or not any more
        state, admitted = self._state, size_in("job", body)
        nodes = max(state.limits.fewest, min(self._request.nodes, admitted))
        if nodes < state.target or (state.scaled_by == BY and nodes != state.target):
            self._put(ScaleRequested(by=BY, nodes=nodes))

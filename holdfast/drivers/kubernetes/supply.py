"""Makes pods of our own whenever some are missing; other engines do it by themselves.

How many there should be is looked at anew before each pod that is made. A pod that was made counts
at once, before the watch shows it, so that a slow watch makes no pods; and whatever is asked for,
there are never more of them than the job wants beside those that are being deleted.

Where a pod may be placed is fixed when it is made. So one that still waits when a machine is
announced to go, or is free again, is deleted and made anew; the API server refuses that for a pod
that was bound, or changed in any way, since it was seen. One that somebody else deletes while it
waits is made anew, too: that says nothing of any machine. If it goes on, ever later.
"""

import asyncio
from collections.abc import Awaitable, Callable

from holdfast.controller import State
from holdfast.counts import count
from holdfast.drivers.kubernetes.cluster import (
    PODS,
    ApiError,
    Cluster,
    ConflictError,
    NotFoundError,
)
from holdfast.drivers.kubernetes.images import (
    ImageRollout,
    RolloutStep,
    give_way,
    marked,
    with_image,
)
from holdfast.drivers.kubernetes.left_machines import Machines
from holdfast.drivers.kubernetes.manifests.engines import pods as own_pods
from holdfast.drivers.kubernetes.manifests.kueue import queue_of
from holdfast.drivers.kubernetes.manifests.names import JOB
from holdfast.drivers.kubernetes.manifests.request import Body, Request
from holdfast.drivers.kubernetes.origin import origin, owned
from holdfast.drivers.kubernetes.roster import Roster
from holdfast.drivers.kubernetes.talk import say

LOOK_S = 5.0  # whether a roll-out comes further
RETRY_S = 1.0  # after the API refused, doubling
RETRY_LAST_S = 30.0
EXISTS = "AlreadyExists"  # other conflicts are those of a quota, which many change at once
UNKNOWN = "?"  # UID of a pod that may have been made


async def whenever(
    look: asyncio.Event,
    act: Callable[[], Awaitable[None]],
    refused: Callable[[ApiError], None],
) -> None:
    """Act whenever there may be something to do, until cancelled; again, and ever later, after the
    API has refused."""
    wait_s = RETRY_S
    while True:
        await look.wait()
        look.clear()
        try:
            await act()
            wait_s = RETRY_S
        except ApiError as error:
            refused(error)
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, RETRY_LAST_S)
            look.set()


class Supply:
    """Pods for one job. `run` until cancelled; `look` whenever something may have changed."""

    def __init__(
        self, cluster: Cluster, request: Request, state: State, roster: Roster, machines: Machines
    ) -> None:
        self._cluster, self._request, self._state = cluster, request, state
        self._roster, self._machines = roster, machines
        self._look = asyncio.Event()
        self._made: dict[str, str] = {}  # name → UID of pods that the watch has not shown yet
        self._unsure: set[str] = set()  # those of them that may be gone again
        self._snatched, self._not_before = 0, 0.0  # as counted by the roster; when the next is made
        self.trouble: str | None = None  # why none can be made
        self.images = ImageRollout(state, roster)
        machines.on_change = self.look

    def look(self) -> None:
        """Pods may have to be made."""
        self._look.set()

    def listed(self) -> None:
        """The roster was told of all pods that there are."""
        self._unsure = set(self._unseen())
        self._look.set()

    async def run(self) -> None:
        """Make what is missing, again and again. Only where the pods are ours to make."""
        await whenever(self._look, self._supply, self._refused)

    async def _supply(self) -> None:
        await self.withdraw_outdated()
        await self.make_missing()
        self.trouble = self._held_back()
        if self.images.ever and not self._state.ended:
            await self._replace()

    def _refused(self, error: ApiError) -> None:
        self.trouble = f"the cluster to accept its pods: {error.message}"
        say(f"cannot create a pod: {error}")

    async def withdraw_outdated(self) -> None:
        """Delete pods that wait and may be placed where they should not. Kueue counts those of a
        group as it has admitted them, and holds one that is deleted until another has come."""
        if self._state.ended or queue_of(self._request.job):
            return
        for pod in self._machines.outdated(self._roster.pods.values()):
            name, version = pod.metadata.name, pod.metadata.resource_version
            if pod.uid not in self._roster.pods:
                continue  # it has gone meanwhile
            self._roster.withdrawn.add(pod.uid)
            try:
                await self._cluster.delete(PODS, name, uid=pod.uid, version=version)
            except ConflictError:
                continue  # the watch will show what is new: most often, that it has a machine
            except ApiError as error:
                say(f"pod {name} waits, and cannot be replaced by one with other affinity: {error}")
                asyncio.get_running_loop().call_later(LOOK_S, self._look.set)
                return
            say(f"pod {name} waited for a machine: it is replaced, because of machines that go")

    async def make_missing(self) -> None:
        """None are made for a job whose ConfigMap is gone: they would be collected at once."""
        await self._look_for_unseen()
        if self._state.ended or self._lacking() <= 0 or self._waits_for_others():
            return
        owner = (await origin(self._cluster, self._request.name)).of_pods
        while not self._state.ended and self._lacking() > 0:
            await self._make(owner)

    def _waits_for_others(self) -> bool:
        """Whether others delete pods before they have a machine, one after the other: then we are
        half of a loop."""
        loop, count = asyncio.get_running_loop(), self._roster.snatched
        if count > self._snatched and count > 1:
            wait_s = min(RETRY_LAST_S, RETRY_S * 2.0 ** min(count - 2, 10))
            self._not_before = loop.time() + wait_s
            loop.call_later(wait_s, self._look.set)
            say(f"{count} pods in a row were deleted by others before they had a machine: the next "
                f"is made in {wait_s:g} s")  # fmt: skip
        elif not count:
            self._not_before = 0.0
        self._snatched = count
        return loop.time() < self._not_before

    async def _make(self, owner: Body) -> None:
        spare = self._request.spares and self._roster.lacks_spares(self._state.target)
        name, image = self._roster.next_name(self._request.name), self._state.version.image
        request = with_image(self._request, image)
        template = own_pods.template(request, "spare" if spare else "node")
        body = owned(marked(own_pods.named(template, name), image), owner)
        if not spare:
            body = self._prioritised(body)
        try:
            made = await self._cluster.create(self._machines.avoided(body))
        except ApiError as error:
            if error.reason == EXISTS:
                return  # the next try takes the next name
            if error.transient:
                self._made[name] = UNKNOWN
                self._unsure.add(name)
            raise
        self._made[name] = made["metadata"]["uid"]

    async def _replace(self) -> None:
        """The next pod that has not the image of the version in use."""
        step = self.images.next() if not self._unseen() else RolloutStep()
        if step.facts:
            self.images.put(*step.facts)
        if self.images.waits:
            asyncio.get_running_loop().call_later(LOOK_S, self._look.set)
        if step.evict is not None:
            await give_way(self._cluster, step.evict)
            self.images.done(step.evict)

    def _prioritised(self, pod: Body) -> Body:
        """One that takes the place of a lost node may preempt other work, if the job says so: the
        whole job waits for it."""
        urgent = self._request.job.scheduling.replacement_priority_class
        if urgent is None or self._state.attempt == 0:
            return pod
        return {**pod, "spec": {**pod["spec"], "priorityClassName": urgent}}

    def _lacking(self) -> int:
        """Pods to be made now: what is missing, as far as there may be more of them."""
        missing, room = self._roster.missing(), self._roster.room(self._state.wanted)
        return min(missing, room) - len(self._unseen())

    def _unseen(self) -> dict[str, str]:
        pods, gone = self._roster.pods, self._roster.gone
        self._made = {
            n: uid for n, uid in self._made.items() if uid not in pods and uid not in gone
        }
        return self._made

    async def _look_for_unseen(self) -> None:
        """A list may have been taken before a pod was made, or after it was deleted again, and an
        answer may have been lost: only the API can tell whether the watch will ever show it."""
        for name in sorted(self._unsure & self._unseen().keys()):
            uid = await self._uid(name)
            if uid and self._made.get(name) == UNKNOWN:
                self._made[name] = uid
            elif self._made.get(name) != uid:
                self._made.pop(name, None)
            self._unsure.discard(name)

    async def _uid(self, name: str) -> str:
        """Of the job's pod of this name; "" if there is none."""
        try:
            meta = (await self._cluster.get(PODS, name))["metadata"]
        except NotFoundError:
            return ""
        ours = (meta.get("labels") or {}).get(JOB) == self._request.name
        return str(meta["uid"]) if ours else ""

    def _held_back(self) -> str | None:
        """Why none are made although some are missing."""
        if self._lacking() > 0 and self._waits_for_others():
            return f"pods to get a machine ({self._snatched} were deleted before that, by others)"
        if self._roster.missing() <= len(self._unseen()) or self._lacking() > 0:
            return None
        pods = count(self._roster.useless(), "pod")
        return f"{pods} to be deleted (terminating or removed from the job)"

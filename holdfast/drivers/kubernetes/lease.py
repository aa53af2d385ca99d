"""One controller at a time: a Lease that the holder renews and a successor waits out.

A second controller stands by and takes the lease once it has seen no renewal for `DURATION_S`, so
it goes on that soon after the first has died with its machine. The holder counts from before its
last renewal was sent, and shorter: after `SURE_S` it is in doubt, and stays so until it has renewed
again or sees that another one holds the lease. Nobody else can have it while it `is_sure`.

Only our own clock counts, and it goes on while the machine sleeps; what others write into
`renewTime` is compared, never read. Each call has a time limit of its own, because a connection to
a machine that has died hangs for far longer than a lease lasts.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from datetime import UTC, datetime

from holdfast.drivers.kubernetes.cluster import (
    LEASES,
    ApiError,
    Cluster,
    ConflictError,
    NotFoundError,
)
from holdfast.drivers.kubernetes.manifests.request import Body
from holdfast.drivers.kubernetes.talk import Complaint
from holdfast.shell.succession import StandingAside

DURATION_S = 10  # a successor waits for so long
SURE_S = 7.0  # the holder is sure for so long
RENEW_S = 2.0
POLL_S = 1.0
CALL_S = 3.0  # for one look and one change


def _clock() -> float:
    """Seconds that pass on a machine that sleeps, too, where there is such a clock."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _nothing() -> None:
    pass


class Lease:
    """The right to be the controller of a job. `on_doubt` is called when it is not sure any more
    that we have it, `on_sure` when it is again."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        holder: str,
        labels: dict[str, str],
        owner: Body | None = None,
    ) -> None:
        self._cluster = cluster
        self._name = name
        self._holder = holder
        owners = [owner] if owner is not None else []
        self._meta: Body = {"labels": labels, "ownerReferences": owners}
        self.term = 0  # grows with each holder
        self.former = ""  # who held it before us and has not given it back
        self.on_doubt: Callable[[], None] = _nothing
        self.on_sure: Callable[[], None] = _nothing
        self._seen, self._since, self._newest = "", 0.0, 0  # its last sign of life, its term
        self._renewed_at = self._looked_at = float("-inf")
        self._doubt: asyncio.TimerHandle | None = None
        self._complain = Complaint()

    @property
    def is_sure(self) -> bool:
        """Whether nobody else can have it now."""
        return _clock() - self._renewed_at < SURE_S

    @property
    def is_in_sight(self) -> bool:
        """Whether we could take it soon after it is free: we could look at it lately."""
        return _clock() - self._looked_at < DURATION_S

    # ── to get it ──

    async def acquire(self) -> None:
        """Wait until it is ours. `former` may still run somewhere: nothing is to lead there."""
        while not await self._try():
            await asyncio.sleep(POLL_S)

    async def _try(self) -> bool:
        began = _clock()
        try:
            async with asyncio.timeout(CALL_S):
                taken = await self._take()
        except TimeoutError:
            return False
        except ApiError as error:
            if not error.transient:
                raise
            return False
        self._looked_at = began
        if taken:
            self._renewed(began)
        return taken

    async def _take(self) -> bool:
        try:
            found = await self._cluster.get(LEASES, self._name)
        except NotFoundError:
            return await self._create()
        if not self._is_free(found) or not await self._put(found, self._holder):
            return False
        former = _holder(found)
        self.former = former if former != self._holder else ""
        return True

    def _is_free(self, found: Body) -> bool:
        self._newest = max(self._newest, _term(found))
        mark = f"{_holder(found)} {_spec(found).get('renewTime')}"
        if mark != self._seen:
            self._seen, self._since = mark, _clock()
        return _holder(found) in ("", self._holder) or _clock() - self._since > DURATION_S

    # ── to keep it ──

    async def keep(self) -> None:
        """Renew for ever; returns when somebody else has it, after which we must not act."""
        try:
            while True:
                await asyncio.sleep(RENEW_S)
                if not await self._still_ours():
                    return
        finally:
            self._set_doubt(None)

    async def _still_ours(self) -> bool:
        """False only if another one has it. What cannot be known is left to the doubt."""
        began = _clock()
        try:
            async with asyncio.timeout(CALL_S):
                found = await self._cluster.get(LEASES, self._name)
                if _holder(found) != self._holder:
                    return False
                if await self._put(found, self._holder):
                    self._renewed(began)
        except NotFoundError:
            with contextlib.suppress(ApiError):
                await self._try()
        except (ApiError, TimeoutError) as error:
            if isinstance(error, ApiError) and not error.transient:
                self._complain(f"lease {self._name} cannot be renewed: {error}")
        return True

    def _renewed(self, began: float) -> None:
        """It is ours since before the call began."""
        was_sure, self._renewed_at = self._doubt is not None, began
        loop = asyncio.get_running_loop()
        left_s = max(0.0, SURE_S - (_clock() - began))
        self._set_doubt(loop.call_later(left_s, self._doubted))
        if not was_sure:
            self.on_sure()

    def _doubted(self) -> None:
        self._doubt = None
        self.on_doubt()

    def _set_doubt(self, timer: asyncio.TimerHandle | None) -> None:
        if self._doubt is not None:
            self._doubt.cancel()
        self._doubt = timer

    async def release(self) -> None:
        """Let the next one have it at once."""
        try:
            async with asyncio.timeout(CALL_S):
                found = await self._cluster.get(LEASES, self._name)
                if _holder(found) == self._holder:
                    await self._put(found, "")
        except (ApiError, TimeoutError):
            return

    async def stand_aside(self) -> None:
        """Wait until another one has it, or has not taken it for `DURATION_S`: none stands by."""
        aside = StandingAside(DURATION_S, _clock())
        while not aside.is_over(_clock(), taken=await self._is_anothers()):
            await asyncio.sleep(POLL_S)

    async def _is_anothers(self) -> bool:
        try:
            async with asyncio.timeout(CALL_S):
                found = await self._cluster.get(LEASES, self._name)
        except (ApiError, TimeoutError):
            return False
        return _holder(found) not in ("", self._holder)

    # ── the object ──

    async def _create(self) -> bool:
        """Terms go on where those of a lease that was deleted have ended."""
        term = self.term or self._newest + 1
        body = {
            "apiVersion": LEASES.api,
            "kind": LEASES.kind,
            "metadata": {
                "name": self._name,
                "namespace": self._cluster.namespace,
                **self._meta,
            },
            "spec": self._wanted(self._holder, term),
        }
        try:
            await self._cluster.create(body)
        except ConflictError:
            return False
        self.term = term
        return True

    async def _put(self, found: Body, holder: str) -> bool:
        """False if somebody was faster: the version makes it a compare-and-swap."""
        version = found["metadata"]["resourceVersion"]
        known = max(_term(found), self._newest, self.term)  # somebody may have put an old one back
        term = known + (_holder(found) != self._holder)
        meta = {"resourceVersion": version, "labels": self._meta["labels"]}
        patch = {"metadata": meta, "spec": self._wanted(holder, term)}
        try:
            await self._cluster.patch(LEASES, self._name, patch)
        except ConflictError:
            return False
        self.term = term
        return True

    def _wanted(self, holder: str, term: int) -> Body:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {
            "holderIdentity": holder,
            "leaseDurationSeconds": DURATION_S,
            "renewTime": now,
            "leaseTransitions": term,
        }


def _spec(found: Body) -> Body:
    spec: Body = found.get("spec") or {}
    return spec


def _holder(found: Body) -> str:
    return _spec(found).get("holderIdentity") or ""


def _term(found: Body) -> int:
    return int(_spec(found).get("leaseTransitions") or 0)

"""Other operators that watch the same TrainingJobs: who acts, so that not both do.

The Lease of an operator has a label that says what it watches: all namespaces, or the one that it
is in. Who watches all looks at the leases of others: a namespace with an operator of its own is
left to that one, and of several that watch all the one with the oldest lease acts. An operator of
one namespace need not look, and has no right to.

Only our own clock counts: whoever's lease was not seen to change for `ALIVE_S` is gone.
"""

import asyncio
import time
from collections.abc import Callable

import msgspec

from holdfast.drivers.kubernetes.cluster import LEASES, ApiError, Cluster, DeniedError
from holdfast.drivers.kubernetes.manifests.names import DOMAIN

SCOPE = f"{DOMAIN}/operator-scope"
ALL, ONE = "all", "namespace"
LOOK_S = 10.0
ALIVE_S = 30.0  # three times as long as it takes to be followed


class _Meta(msgspec.Struct, rename="camel"):
    """Metadata of a Lease."""

    namespace: str
    labels: dict[str, str] = {}
    creation_timestamp: str = ""


class _Spec(msgspec.Struct, rename="camel"):
    """Who holds it, and since when."""

    holder_identity: str | None = None
    renew_time: str | None = None


class OperatorLease(msgspec.Struct):
    """The Lease of an operator, as far as others read it."""

    metadata: _Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)

    @property
    def age(self) -> tuple[str, str]:
        """The least is that of the oldest."""
        return self.metadata.creation_timestamp, self.metadata.namespace

    @property
    def scope(self) -> str:
        """What its operator watches."""
        return self.metadata.labels[SCOPE]


class Neighbours:
    """Other operators, for one that watches all namespaces. `run` until cancelled."""

    def __init__(
        self,
        cluster: Cluster,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster, self._say, self._clock = cluster, say, clock
        self._signs: dict[str, tuple[str, float]] = {}  # by namespace: the last, and since when
        self.elder = ""  # the namespace of one that acts instead of us
        self.owned: frozenset[str] = frozenset()  # namespaces with an operator of their own

    def acts_in(self, namespace: str) -> bool:
        """Whether the TrainingJobs there are ours to look after."""
        return not self.elder and namespace not in self.owned

    async def run(self, changed: Callable[[], None]) -> None:
        """Look for ever. `changed` hears when others act, or others than before."""
        while True:
            await asyncio.sleep(LOOK_S)
            if await self.look():
                changed()

    async def look(self) -> bool:
        """Whether anything has changed. What cannot be seen stays as it was."""
        try:
            found = await self._cluster.listed(LEASES, OperatorLease, labels=SCOPE, namespace="")
        except DeniedError:
            return False  # rights of a former version
        except ApiError as error:
            self._say(f"leases of other operators cannot be read: {error}")
            return False
        leases = {one.metadata.namespace: one for one in found.items}
        ours = leases.pop(self._cluster.namespace, None)
        alive = [one for one in leases.values() if self._is_alive(one)]
        before = (self.elder, self.owned)
        elders = [one for one in alive if one.scope == ALL and ours and one.age < ours.age]
        self.elder = min(elders, key=lambda one: one.age).metadata.namespace if elders else ""
        self.owned = frozenset(one.metadata.namespace for one in alive if one.scope == ONE)
        self._tell(*before)
        return before != (self.elder, self.owned)

    def _is_alive(self, lease: OperatorLease) -> bool:
        where, spec = lease.metadata.namespace, lease.spec
        sign = f"{spec.holder_identity} {spec.renew_time}"
        if self._signs.get(where, ("", 0.0))[0] != sign:
            self._signs[where] = (sign, self._clock())
        return bool(spec.holder_identity) and self._clock() - self._signs[where][1] < ALIVE_S

    def _tell(self, elder: str, owned: frozenset[str]) -> None:
        for namespace in sorted(self.owned - owned):
            self._say(f"TrainingJobs of namespace {namespace} are left to the operator there")
        for namespace in sorted(owned - self.owned):
            self._say(f"namespace {namespace} has no operator of its own any more: taking over")
        if self.elder and self.elder != elder:
            self._say(
                f"the operator in namespace {self.elder} watches all namespaces, too: this one "
                "does nothing as long as that one runs; remove one of them"
            )
        if elder and not self.elder:
            self._say(f"the operator in namespace {elder} does not run any more: taking over")

"""Of two operators that watch the same TrainingJobs one acts, and the other one says so."""

import asyncio

import msgspec
import pytest

from holdfast.drivers.kubernetes.cluster import DEPLOYMENTS, LEASES, ApiError, DeniedError, Listed
from holdfast.operator import neighbours
from holdfast.operator.machine_care import MachineCare
from holdfast.operator.neighbours import ALIVE_S, ALL, ONE, SCOPE, Neighbours, OperatorLease
from tests.operator.asking import Body, training_job
from tests.operator.test_loop import site

OURS, THEIRS = ("holdfast-system", ALL, "2026-01-02"), ("other", ALL, "2026-01-01")
LATER, TEAM = ("later", ALL, "2026-01-03"), ("team", ONE, "2026-01-03")
Told = tuple[str, str, str]  # namespace, scope, made at


class Leases:
    """What the API says of leases of operators, and one that reads it."""

    namespace = OURS[0]

    def __init__(self, *there: Told) -> None:
        self.there, self.now, self.renewed = list(there), 0.0, 0
        self.silent: set[str] = set()
        self.error: ApiError | None = None
        self.said: list[str] = []
        self.it = Neighbours(self, self.said.append, lambda: self.now)  # type: ignore[arg-type]

    async def listed(self, *_kind: object, labels: str, namespace: str) -> Listed[OperatorLease]:
        assert (labels, namespace) == (SCOPE, "")
        if self.error is not None:
            raise self.error
        self.renewed += 1
        return Listed([self._lease(*one) for one in self.there], "1")

    def _lease(self, namespace: str, scope: str, made: str) -> OperatorLease:
        meta = {"namespace": namespace, "labels": {SCOPE: scope}, "creationTimestamp": made}
        at = 0 if namespace in self.silent else self.renewed
        spec = {"holderIdentity": "a-pod", "renewTime": str(at)}
        return msgspec.convert({"metadata": meta, "spec": spec}, OperatorLease)

    def look(self, *, after_s: float = 0.0) -> bool:
        self.now += after_s
        return asyncio.run(self.it.look())


SCOPES: dict[str, tuple[list[Told], str, set[str]]] = {
    "it is alone": ([OURS], "", set()),
    "an older one watches all": ([OURS, THEIRS], "other", set()),
    "a newer one watches all": ([OURS, LATER], "", set()),
    "two older ones do": ([OURS, THEIRS, ("third", ALL, "2025-12-31")], "third", set()),
    "one of the same second, by its name": ([OURS, ("a", ALL, OURS[2])], "a", set()),
    "a namespace has its own": ([OURS, TEAM], "", {"team"}),
    "its own lease says nothing yet": ([THEIRS, TEAM], "", {"team"}),
}


@pytest.mark.parametrize("which", SCOPES)
def test_the_oldest_acts_and_a_namespace_with_its_own_operator_is_left_to_it(which: str) -> None:
    there, elder, owned = SCOPES[which]
    leases = Leases(*there)
    assert leases.look() == bool(elder or owned) and not leases.look()
    assert leases.it.elder == elder and set(leases.it.owned) == owned
    assert leases.it.acts_in("anywhere") == (not elder)
    assert leases.it.acts_in("team") == (not elder and "team" not in owned)
    assert len(leases.said) == bool(elder) + len(owned)


@pytest.mark.parametrize("theirs", [THEIRS, TEAM])
def test_who_does_not_renew_its_lease_is_followed_and_who_does_is_not(theirs: Told) -> None:
    leases = Leases(OURS, theirs)
    leases.look()
    assert not leases.look(after_s=ALIVE_S), "it was renewed"
    leases.silent.add(theirs[0])
    leases.look()
    assert not leases.look(after_s=ALIVE_S - 1.0) and not leases.it.acts_in("team")
    assert leases.look(after_s=1.0) and leases.it.acts_in("team")
    assert leases.said[-1].endswith("taking over")


@pytest.mark.parametrize("error", [ApiError(500, "X", "etcd"), DeniedError(403, "Forbidden", "no")])
def test_what_cannot_be_seen_stays_as_it_was(error: ApiError) -> None:
    leases = Leases(OURS, TEAM)
    leases.look()
    leases.error = error
    assert not leases.look(after_s=10 * ALIVE_S) and not leases.it.acts_in("team")


def test_machines_are_looked_after_by_the_one_that_acts(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        care = MachineCare(None, "", print)  # type: ignore[arg-type]
        looked, asked = asyncio.Event(), asyncio.Event()
        monkeypatch.setattr("holdfast.operator.machine_care.LOOK_S", 0.001)

        async def look(_now: float) -> bool:
            looked.set()
            return False

        def may_act() -> bool:
            asked.set()
            return allowed

        monkeypatch.setattr(care, "look", look)
        care.may_act, allowed = may_act, False
        caring = asyncio.create_task(care.run())
        await asked.wait()
        assert not looked.is_set()
        allowed = True
        await looked.wait()
        caring.cancel()
        await asyncio.gather(caring, return_exceptions=True)

    asyncio.run(asyncio.wait_for(story(), 60))


def lease_in_team(holder: str, **labels: str) -> Body:
    spec = {"holderIdentity": holder, "renewTime": "2026-01-01T00:00:00.000000Z"}
    return {"metadata": {"name": "holdfast-operator", "labels": labels}, "spec": spec}


def test_an_operator_of_all_namespaces_leaves_one_to_its_own_while_that_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(neighbours, "LOOK_S", 0.05)
    monkeypatch.setattr(neighbours, "ALIVE_S", 1e9)
    former: Body = {"metadata": {"name": "holdfast-operator"}, "spec": {"holderIdentity": ""}}

    async def live() -> None:
        async with site() as it:
            it.fake.namespace("team")
            it.store.create(LEASES, "team", lease_in_team("theirs", **{SCOPE: ONE}))
            it.store.create(LEASES, "default", former)  # of a version that did not say its scope
            await it.apply(training_job(namespace="team"))
            await it.apply(training_job())
            it.start()
            await it.until(lambda: it.get(DEPLOYMENTS, "run-controller"))
            assert it.store.find(DEPLOYMENTS, "team", "run-controller") is None
            ours = it.get(LEASES, "holdfast-operator")
            assert ours is not None and ours["metadata"]["labels"][SCOPE] == ALL
            it.store.change(LEASES, "team", "holdfast-operator", _released)
            await it.until(lambda: it.store.find(DEPLOYMENTS, "team", "run-controller"))

    asyncio.run(live())


def _released(body: Body) -> None:
    body["spec"]["holderIdentity"] = ""

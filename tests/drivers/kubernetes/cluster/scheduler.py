"""Puts pods on machines: room, selectors, affinity, taints; and says so where it cannot."""

from collections import Counter

from holdfast.drivers.kubernetes.cluster import CLAIMS, NODES, PODS
from tests.drivers.kubernetes.cluster.admission import asked
from tests.drivers.kubernetes.cluster.conditions import set_condition
from tests.drivers.kubernetes.cluster.evictions import disrupt
from tests.drivers.kubernetes.cluster.quantities import number
from tests.drivers.kubernetes.cluster.refusal import Body
from tests.drivers.kubernetes.cluster.selectors import expression, fits
from tests.drivers.kubernetes.cluster.store import Store

HOSTNAME = "kubernetes.io/hostname"


def schedule(store: Store) -> None:
    """Bind every pod that waits and fits somewhere, those of high priority first."""
    pods = store.all(PODS)
    waiting = [p for p in pods if not p["spec"].get("nodeName") and _alive(p)]
    for pod in sorted(waiting, key=_priority, reverse=True):
        meta = pod["metadata"]
        why = _held(store, pod)
        if why is None:
            place, reason = _placed(store, pod)
            why = None if place else ("Unschedulable", reason)
            if why is not None:
                _preempt(store, pod)
        said = why
        name = place if why is None else ""

        def edit(body: Body, name: str = name, said: tuple[str, str] | None = said) -> None:
            if said is None:
                body["spec"]["nodeName"] = name
                set_condition(body, "PodScheduled", "True")
            else:
                set_condition(body, "PodScheduled", "False", *said)

        store.change(PODS, meta["namespace"], meta["name"], edit)


def _alive(pod: Body) -> bool:
    return "deletionTimestamp" not in pod["metadata"] and _unfinished(pod)


def _unfinished(pod: Body) -> bool:
    return pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")


def _held(store: Store, pod: Body) -> tuple[str, str] | None:
    """What has nothing to do with machines."""
    if pod["spec"].get("schedulingGates"):
        return "SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates"
    for volume in pod["spec"].get("volumes", []):
        name = volume.get("persistentVolumeClaim", {}).get("claimName")
        claim = name and store.find(CLAIMS, pod["metadata"]["namespace"], name)
        if name and claim is None:
            return "Unschedulable", f'persistentvolumeclaim "{name}" not found'
        if claim and claim.get("status", {}).get("phase") != "Bound":
            return "Unschedulable", "pod has unbound immediate PersistentVolumeClaims"
    return None


def _placed(store: Store, pod: Body) -> tuple[str, str]:
    """The machine that the pod is least averse to, and of those the emptiest, or why none does."""
    machines = store.all(NODES)
    refused: Counter[str] = Counter()
    found: list[tuple[int, int, str]] = []
    for machine in machines:
        name = machine["metadata"]["name"]
        there = [p for p in store.all(PODS) if p["spec"].get("nodeName") == name and _unfinished(p)]
        why = _misfit(pod, machine, there)
        if why is None:
            found.append((_aversion(pod, there), len(there), name))
        else:
            refused[why] += 1
    if found:
        return min(found)[-1], ""
    reasons = ", ".join(f"{count} {why}" for why, count in sorted(refused.items()))
    return "", f"0/{len(machines)} nodes are available: {reasons}."


def _priority(pod: Body) -> int:
    found: int = pod["spec"].get("priority", 0)
    return found


def _preempt(store: Store, pod: Body) -> None:
    """Take away as few pods of lower priority as make room for this one, if that is possible; it is
    placed once they are gone, and nominated till then."""
    if pod["spec"].get("preemptionPolicy") == "Never":
        return
    found: list[tuple[int, list[Body], str]] = []
    for machine in store.all(NODES):
        name = machine["metadata"]["name"]
        there = [p for p in store.all(PODS) if p["spec"].get("nodeName") == name and _unfinished(p)]
        lower = sorted((p for p in there if _priority(p) < _priority(pod)), key=_priority)
        for count in range(1, len(lower) + 1):
            victims = lower[:count]
            if _misfit(pod, machine, [p for p in there if p not in victims]) is None:
                found.append((count, victims, name))
                break
    _, victims, place = min(found, key=lambda one: one[0], default=(0, [], ""))
    if place:
        _nominate(store, pod, place)
    for victim in victims:
        meta = victim["metadata"]
        if "deletionTimestamp" not in meta:
            disrupt(store, victim, "PreemptionByScheduler", "preempting to accommodate a pod")
            store.delete(PODS, meta["namespace"], meta["name"])


def _nominate(store: Store, pod: Body, machine: str) -> None:
    def edit(body: Body) -> None:
        body["status"]["nominatedNodeName"] = machine

    store.change(PODS, pod["metadata"]["namespace"], pod["metadata"]["name"], edit)


def _misfit(pod: Body, machine: Body, there: list[Body]) -> str | None:
    spec, labels = machine["spec"], machine["metadata"].get("labels", {})
    if spec.get("unschedulable"):
        return "node(s) were unschedulable"
    for taint in spec.get("taints", []):
        if taint["effect"] != "PreferNoSchedule" and tolerated(pod, taint) is None:
            return f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"
    if not _selected(pod["spec"], machine["metadata"]["name"], labels):
        return "node(s) didn't match Pod's node affinity/selector"
    if _repelled(pod, there):
        return "node(s) didn't match pod anti-affinity rules"
    return _room(pod, machine, there)


def tolerated(pod: Body, taint: Body) -> float | None:
    """For how many seconds a pod stands a taint; None: not at all."""
    found: list[float] = []
    for toleration in pod["spec"].get("tolerations", []):
        if toleration.get("effect") not in (None, "", taint["effect"]):
            continue
        if toleration.get("key") not in (None, "", taint["key"]):
            continue
        if toleration.get("operator", "Equal") == "Exists" or toleration.get(
            "value", ""
        ) == taint.get("value", ""):
            found.append(float(toleration.get("tolerationSeconds", float("inf"))))
    return min(found, default=None)


def _selected(spec: Body, name: str, labels: Body) -> bool:
    wanted = spec.get("nodeSelector") or {}
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    affinity = spec.get("affinity", {}).get("nodeAffinity", {})
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return True
    named = {"metadata.name": name}
    return any(
        all(expression(labels, e) for e in term.get("matchExpressions", []))
        and all(expression(named, e) for e in term.get("matchFields", []))
        for term in required["nodeSelectorTerms"]
    )


def _repelled(pod: Body, there: list[Body]) -> bool:
    """Only host names are looked at, as a domain that keeps pods apart."""
    terms = _apart(pod).get("requiredDuringSchedulingIgnoredDuringExecution", [])
    return any(_meets(term, there) for term in terms)


def _aversion(pod: Body, there: list[Body]) -> int:
    """The weights of what the pod would rather not share a machine with."""
    wishes = _apart(pod).get("preferredDuringSchedulingIgnoredDuringExecution", [])
    return sum(wish["weight"] for wish in wishes if _meets(wish["podAffinityTerm"], there))


def _apart(pod: Body) -> Body:
    found: Body = pod["spec"].get("affinity", {}).get("podAntiAffinity", {})
    return found


def _meets(term: Body, there: list[Body]) -> bool:
    return term["topologyKey"] == HOSTNAME and any(
        fits(term.get("labelSelector", {}), other["metadata"].get("labels", {})) for other in there
    )


def _room(pod: Body, machine: Body, there: list[Body]) -> str | None:
    capacity = {k: number(str(v)) for k, v in machine["status"]["allocatable"].items()}
    if len(there) + 1 > capacity.get("pods", 110):
        return "Too many pods"
    for key, amount in asked(pod).items():
        used = sum(asked(other).get(key, 0.0) for other in there)
        if amount and used + amount > capacity.get(key, 0.0):
            return f"Insufficient {key}"
    return None

"""The Eviction API: deletion of a pod, unless a disruption budget forbids it now."""

from holdfast.drivers.kubernetes.cluster import BUDGETS, PODS
from tests.drivers.kubernetes.cluster.conditions import is_true, set_condition
from tests.drivers.kubernetes.cluster.refusal import Body, RefusalError
from tests.drivers.kubernetes.cluster.selectors import fits
from tests.drivers.kubernetes.cluster.store import Store

PERCENT = 100
TWO = (
    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not "
    "support."
)


def evict(store: Store, namespace: str, name: str, eviction: Body) -> Body:
    """Delete a pod politely. Raises `RefusalError`: 404, 409 for another UID, 429 for a budget."""
    pod = store.get(PODS, namespace, name)
    options = eviction.get("deleteOptions") or {}
    only = options.get("preconditions") or {}
    uid, version = only.get("uid"), only.get("resourceVersion")
    if version not in (None, pod["metadata"]["resourceVersion"]):
        raise RefusalError(409, f"the ResourceVersion in the precondition ({version}) is another")
    if uid not in (None, pod["metadata"]["uid"]):
        raise RefusalError(409, f"Precondition failed: UID in precondition: {uid}")
    ended = pod["status"].get("phase") in ("Succeeded", "Failed")
    if not ended and "deletionTimestamp" not in pod["metadata"]:
        budgets = [one for one in store.all(BUDGETS, namespace) if _covers(one, pod)]
        if len(budgets) > 1:
            raise RefusalError(500, TWO)
        for budget in budgets:
            _within(store, budget, pod)
    disrupt(store, pod, "EvictionByEvictionAPI", "Eviction API: evicting")
    store.delete(PODS, namespace, name, uid=uid, grace_s=options.get("gracePeriodSeconds"))
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


def disrupt(store: Store, pod: Body, reason: str, message: str) -> None:
    """Say on the pod that it goes by no fault of its own."""
    meta = pod["metadata"]

    def edit(body: Body) -> None:
        set_condition(body, "DisruptionTarget", "True", reason, message)

    store.change(PODS, meta["namespace"], meta["name"], edit)


def _covers(budget: Body, pod: Body) -> bool:
    return fits(budget["spec"]["selector"], pod["metadata"].get("labels", {}))


def _within(store: Store, budget: Body, pod: Body) -> None:
    namespace, selector = pod["metadata"]["namespace"], budget["spec"]["selector"]
    covered = [
        p for p in store.all(PODS, namespace) if fits(selector, p["metadata"].get("labels", {}))
    ]
    healthy = sum(is_true(p, "Ready") and "deletionTimestamp" not in p["metadata"] for p in covered)
    if not is_true(pod, "Ready"):
        return  # a pod that is not healthy disrupts nobody further
    if healthy - 1 < _needed(budget["spec"], len(covered)):
        name = budget["metadata"]["name"]
        said = f"The disruption budget {name} needs more healthy pods; there are {healthy} now"
        raise RefusalError(
            429,
            "Cannot evict pod as it would violate the pod's disruption budget.",
            causes=[{"reason": "DisruptionBudget", "message": said}],
        )


def _needed(spec: Body, covered: int) -> int:
    """Pods that must stay healthy."""
    if "minAvailable" in spec:
        return _count(spec["minAvailable"], covered)
    return covered - _count(spec.get("maxUnavailable", 1), covered)


def _count(said: int | str, covered: int) -> int:
    if isinstance(said, int):
        return said
    return -(-int(said.rstrip("%")) * covered // PERCENT)

"""What keeps others away from a job: a NetworkPolicy and a PodDisruptionBudget.

The budget says how many pods must stay, as a number. `maxUnavailable` would need the scale of
whatever owns the pods, which a Job and most operators' kinds do not have; Kubernetes then allows no
eviction at all, ours included (kubernetes/kubernetes#77383, #129625).
"""

from holdfast.drivers.kubernetes.manifests.engines import rayjob
from holdfast.drivers.kubernetes.manifests.names import metadata, selector
from holdfast.drivers.kubernetes.manifests.pod import CONTROLLER_PORT
from holdfast.drivers.kubernetes.manifests.request import Body, Request
from holdfast.drivers.kubernetes.manifests.support.services import METRICS_PORT

KEPT = ("node", "spare", "chief", "launcher", "ps")  # roles whose loss costs the job something


def objects(request: Request) -> list[Body]:
    """NetworkPolicy and PodDisruptionBudget, where the job wants them."""
    return [*_policy(request), *_budget(request)]


def _policy(request: Request) -> list[Body]:
    """Pods of the job are reached by each other, their metrics by anybody; all may call out."""
    on_host = request.job.network.host
    if not request.job.network.policy or (on_host and not request.managed):
        return []
    spec: Body = {
        "podSelector": selector(request, "controller") if on_host else selector(request),
        "policyTypes": ["Ingress"],
        "ingress": _ingress(request, on_host=on_host),
    }
    return [_object(request, "networking.k8s.io/v1", "NetworkPolicy", spec)]


def _ingress(request: Request, *, on_host: bool) -> list[Body]:
    """Agents on the host's network come from addresses of machines, which no selector knows."""
    if on_host:
        return [_open(CONTROLLER_PORT, METRICS_PORT)]
    inside: Body = {"from": [{"podSelector": selector(request)}]}
    beside = [_dashboard()] if request.engine == "rayjob" else []
    if not request.managed:
        return [inside, *beside]
    return [inside, *beside, _open(request.job.network.ports.agent, METRICS_PORT)]


def _dashboard() -> Body:
    """KubeRay's operator, wherever it runs, asks the head how the entrypoint is. Nobody else does:
    who reaches the dashboard can run programs there."""
    operator = {"namespaceSelector": {}, "podSelector": {"matchLabels": rayjob.OPERATOR}}
    return {"from": [operator], **_open(rayjob.DASHBOARD_PORT)}


def _open(*ports: int) -> Body:
    return {"ports": [{"protocol": "TCP", "port": port} for port in ports]}


def _budget(request: Request) -> list[Body]:
    disruption = request.job.disruption
    if not disruption.budget:
        return []
    said = disruption.max_unavailable
    leave = said if said is not None else max(1, request.spares)
    spec = {
        "minAvailable": max(0, kept_count(request) - leave),
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": selector(request, *KEPT),
    }
    return [_object(request, "policy/v1", "PodDisruptionBudget", spec)]


def kept_count(request: Request) -> int:
    """Pods that the budget counts."""
    job = request.job
    if job.sweep is not None:
        return job.sweep.parallel
    by_mpirun = not request.managed and job.trains_with == "mpi"
    launcher = 1 if request.engine in ("mpijob", "rayjob") or by_mpirun else 0
    return request.pods + launcher + job.roles.ps


def _object(request: Request, version: str, kind: str, spec: Body) -> Body:
    made = metadata(request, request.name)
    return {"apiVersion": version, "kind": kind, "metadata": made, "spec": spec}

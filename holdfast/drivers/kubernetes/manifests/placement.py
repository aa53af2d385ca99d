"""Where a pod may run: selectors, tolerations, affinity, spreading, priority."""

from holdfast.devices import by_resource
from holdfast.drivers.kubernetes.manifests.names import selector
from holdfast.drivers.kubernetes.manifests.part import Part
from holdfast.drivers.kubernetes.manifests.request import Body, Request, gpus
from holdfast.spec import Job

LEAVE_DEAD_S = 20  # instead of 300: a dead machine is left before anybody has made coffee
LEAVE_SOON_S = 10  # what costs nothing to start anew waits less
HOSTNAME = "kubernetes.io/hostname"
TRAINS = ("node", "spare", "chief")  # roles of nodes; others run beside them


def pod(request: Request, part: Part) -> Body:
    """Keys of a pod's spec; the engine or the gang may add the scheduler and the priority."""
    scheduling = request.job.scheduling
    spare = part.role == "spare" and scheduling.spare_priority_class
    found: Body = {
        "priorityClassName": spare or scheduling.priority_class,
        "preemptionPolicy": scheduling.preemption,
        "schedulerName": scheduling.scheduler,
        "nodeSelector": dict(scheduling.node_selector),
        "affinity": _affinity(request, part),
        "tolerations": _tolerations(request.job, part),
        "topologySpreadConstraints": _spread(request, part),
    }
    return {key: value for key, value in found.items() if value}


def _affinity(request: Request, part: Part) -> Body:
    """The user's affinity, with the terms that keep nodes of the job apart. What runs beside them,
    as a launcher, may share a place with one; where both open a port of the host's network, the
    scheduler keeps them apart by that."""
    scheduling = request.job.scheduling
    keys = [scheduling.separate] if scheduling.separate else []
    keys += [HOSTNAME] if one_per_machine(request.job) and HOSTNAME not in keys else []
    if not keys or part.role not in TRAINS:
        return dict(scheduling.affinity)
    apart: Body = dict(scheduling.affinity.get("podAntiAffinity", {}))
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    ours = {"labelSelector": selector(request, *TRAINS)}
    terms = [{**ours, "topologyKey": key} for key in keys]
    apart[required] = [*apart.get(required, []), *terms]
    return {**scheduling.affinity, "podAntiAffinity": apart}


def one_per_machine(job: Job) -> bool:
    """Whether no two nodes share a machine."""
    said = job.scheduling.one_per_machine
    return job.network.host if said == "auto" else said


def _tolerations(job: Job, part: Part) -> list[Body]:
    found: list[Body] = [
        {
            "key": f"node.kubernetes.io/{state}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": LEAVE_SOON_S if part.role == "controller" else LEAVE_DEAD_S,
        }
        for state in ("not-ready", "unreachable")
    ]
    if gpus(job) and not part.small:
        kind = by_resource(job.gpu_resource)
        key = (kind.taint if kind is not None else None) or job.gpu_resource
        found.append({"key": key, "operator": "Exists", "effect": "NoSchedule"})
    return [*found, *(dict(toleration) for toleration in job.scheduling.tolerations)]


def _spread(request: Request, part: Part) -> list[Body]:
    """Nodes are spread evenly; what runs beside them, as the controller, does not count."""
    spreads = request.job.scheduling.spread if part.role in TRAINS else ()
    return [
        {
            "maxSkew": spread.max_skew,
            "topologyKey": spread.key,
            "whenUnsatisfiable": "DoNotSchedule" if spread.required else "ScheduleAnyway",
            "nodeTaintsPolicy": "Honor",
            "labelSelector": selector(request, *TRAINS),
        }
        for spread in spreads
    ]

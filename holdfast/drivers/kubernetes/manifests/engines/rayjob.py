"""RayJob: KubeRay's, with the RayCluster that it makes and takes down again.

KubeRay submits the entrypoint once the head and every worker are ready, and takes its end for the
job's; a process of Ray runs it in the head's container. Plain: the entrypoint is the user's
program, which finds the cluster as RAY_ADDRESS, and the workers are Ray's.

Managed: the workers run agents, with Ray beside them, and the entrypoint is an agent that only
waits. The agents need neither the head nor the submission: a head that is lost costs no step, and
the next one is given the entrypoint again. A new RayCluster would be a new start of everything, so
there is no retry. A worker whose container fails restarts where it is; a pod with `Never` would be
deleted and made anew whatever it has ended with.

The command reaches the head through two shells, that of the submitter and that of Ray's job agent,
and `ray job submit` quotes it for the second.
"""

import shlex

from holdfast.drivers.kubernetes.manifests import gang, kueue, pod, program
from holdfast.drivers.kubernetes.manifests.engines.kubeflow import INT32_MAX
from holdfast.drivers.kubernetes.manifests.marks import marked
from holdfast.drivers.kubernetes.manifests.names import metadata
from holdfast.drivers.kubernetes.manifests.part import Part
from holdfast.drivers.kubernetes.manifests.request import Body, Request

WORKER = "ray-worker"
HEAD = "ray-head"
SUBMITTER = "ray-job-submitter"
OVERWRITE = {"ray.io/overwrite-container-cmd": "true"}
DASHBOARD_PORT = 8265
OPERATOR = {"app.kubernetes.io/component": "kuberay-operator"}
"""Labels of the operator's pods, which ask the head how the entrypoint is."""


def bodies(request: Request) -> list[Body]:
    """The gang's objects and the RayJob."""
    node = _worker(request)
    body = {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": metadata(request, request.name),
        "spec": _spec(request, node),
    }
    return [*gang.objects(request, node), kueue.apply(request, body)]


def _spec(request: Request, node: Body) -> Body:
    lifetime = request.job.lifetime
    restarts = 0 if request.managed else min(request.job.recovery.restarts, INT32_MAX)
    found: Body = {
        "suspend": lifetime.suspend or None,
        "entrypoint": shlex.join(entrypoint(request)),
        "shutdownAfterJobFinishes": True,
        "backoffLimit": restarts,
        "activeDeadlineSeconds": lifetime.time_limit_s,
        "submitterConfig": {"backoffLimit": INT32_MAX} if request.managed else None,
        "submitterPodTemplate": _submitter(request),
        "rayClusterSpec": {
            "headGroupSpec": {"rayStartParams": {"num-cpus": "0"}, "template": _head(request)},
            "workerGroupSpecs": [
                {
                    "groupName": "node",
                    "replicas": request.pods,
                    "minReplicas": request.pods,
                    "maxReplicas": request.pods,
                    "rayStartParams": {},
                    "template": gang.member(request, node),
                }
            ],
        },
    }
    return {key: value for key, value in found.items() if value is not None}


def entrypoint(request: Request) -> tuple[str, ...]:
    """What Ray runs in the head's container."""
    return program.agent(request, "--wait") if request.managed else program.script(request)


def _worker(request: Request) -> Body:
    """A node. Without our command, KubeRay puts in its own."""
    if not request.managed:
        return pod.template(request, Part(container=WORKER, restart=None))
    part = Part(container=WORKER, command=program.agent(request), restart="OnFailure")
    return marked(pod.template(request, part), annotations=OVERWRITE)


def _head(request: Request) -> Body:
    """Ray's own process, and the entrypoint: in plain mode the one that writes the results."""
    ray = request.job.ray
    part = Part(
        role="launcher",
        container=HEAD,
        restart=None,
        small=True,
        cpu=ray.head_cpu,
        memory=ray.head_memory,
        data=not request.managed,
    )
    return pod.template(request, part)


def _submitter(request: Request) -> Body:
    """Without a command, KubeRay puts in `ray job submit`, which fails with the head. The kubelet
    forgets such failures; a Job would wait twice as long after each, in the end for longer than
    KubeRay waits for the entrypoint."""
    part = Part(
        role="submitter",
        container=SUBMITTER,
        restart="OnFailure" if request.managed else "Never",
        small=True,
        cpu="500m",
        memory="1Gi",
    )
    return pod.template(request, part)

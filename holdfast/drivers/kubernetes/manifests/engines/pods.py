"""Pods of our own, one for every node and spare: nothing stands between Holdfast and the cluster.

In a managed job the controller replaces lost pods at once; the rendered ones are those of the
start. Plain pods are replaced by nobody: torchrun restarts what crashes, and a command without
torchrun is restarted by the machine's kubelet. The name of a pod says nothing about its rank.
"""

from dataclasses import replace
from typing import Literal

from holdfast.drivers.kubernetes.manifests import gang, indexed, kueue
from holdfast.drivers.kubernetes.manifests.groups import groups
from holdfast.drivers.kubernetes.manifests.names import metadata
from holdfast.drivers.kubernetes.manifests.request import Body, Request

Restart = Literal["Never", "OnFailure"]
GATE = "holdfast.dev/suspended"  # whoever takes it off a pod starts it


def bodies(request: Request) -> list[Body]:
    """The gang's objects and all pods. The pods of one role share one spec, up to the host name."""
    made = {role: template(request, role) for role in groups(request)}
    roles = [role for role, count in groups(request).items() for _ in range(count)]
    pods = [named(made[role], f"{request.name}-{index}") for index, role in enumerate(roles)]
    return [*gang.objects(request, made["node"]), *pods]


def template(request: Request, role: str = "node") -> Body:
    """A pod of this role as a Pod without its own name."""
    part = indexed.node(request, f"{request.name}-0.{request.name}")
    made = indexed.template(request, replace(part, restart=_restart(request)), role)
    found: Body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**metadata(request, ""), **made["metadata"]},
        "spec": {**_lifetime(request), **made["spec"]},
    }
    return kueue.pod(request, found, role)


def named(template: Body, name: str) -> Body:
    """The template as the pod of this name."""
    found = {**template["metadata"], "name": name}
    return {**template, "metadata": found, "spec": {"hostname": name, **template["spec"]}}


def _restart(request: Request) -> Restart:
    """Nobody else restarts a plain command."""
    again = not request.managed and request.job.command is not None
    return "OnFailure" if again and request.job.recovery.restarts else "Never"


def _lifetime(request: Request) -> Body:
    said = request.job.lifetime
    found: Body = {}
    if said.suspend:
        found["schedulingGates"] = [{"name": GATE}]
    if said.time_limit_s is not None:
        found["activeDeadlineSeconds"] = said.time_limit_s
    return found

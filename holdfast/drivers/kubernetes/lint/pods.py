"""Traps in where a pod runs and how it ends: network, placement, tolerations, companions."""

from collections.abc import Iterator

from holdfast.drivers.kubernetes.lint.check import Hit, check
from holdfast.drivers.kubernetes.lint.look import (
    annotations,
    labels,
    number,
    part,
    parts,
    selects,
    text,
    value,
)
from holdfast.drivers.kubernetes.lint.spots import Spot, containers, gpus, managed
from holdfast.drivers.kubernetes.manifests.request import Body

DEAD = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
GRACE_MIN_S = 30
QUICK_S = 120
HOST = "kubernetes.io/hostname"


def _on_host(template: Body) -> bool:
    return value(template, "spec", "hostNetwork") is True


def _ports(template: Body) -> list[Body]:
    always = [
        c for c in parts(template, "spec", "initContainers") if c.get("restartPolicy") == "Always"
    ]
    return [port for c in (*always, *containers(template)) for port in parts(c, "ports")]


@check(
    "host-network-dns",
    "error",
    "pod",
    why="with the machine's network a pod also gets the machine's DNS, which resolves neither "
    "Services nor other pods",
    help="set dnsPolicy: ClusterFirstWithHostNet beside hostNetwork: true",
)
def _host_network_dns(spot: Spot) -> Iterator[Hit]:
    policy = value(spot.body, "spec", "dnsPolicy")
    if _on_host(spot.body) and policy not in ("ClusterFirstWithHostNet", "None"):
        yield "spec.dnsPolicy", f"is {policy or 'ClusterFirst'} with hostNetwork"


@check(
    "port-clash",
    "error",
    "pod",
    why="containers of a pod share one network: the second that binds the port fails",
    help="give each container a port of its own",
)
def _port_clash(spot: Spot) -> Iterator[Hit]:
    seen: set[tuple[object, object]] = set()
    for port in _ports(spot.body):
        found = (port.get("containerPort"), port.get("protocol", "TCP"))
        if found in seen:
            yield "spec.containers", f"port {found[0]} is taken twice"
        seen.add(found)


@check(
    "host-port-differs",
    "error",
    "pod",
    why="with hostNetwork the container's port is the machine's: Kubernetes refuses another number",
    help="leave hostPort out",
)
def _host_port_differs(spot: Spot) -> Iterator[Hit]:
    for port in _ports(spot.body):
        ours, theirs = number(port, "containerPort"), number(port, "hostPort")
        if _on_host(spot.body) and theirs not in (None, ours):
            yield "spec.containers", f"containerPort {ours} and hostPort {theirs}"


@check(
    "host-network-crowded",
    "warning",
    "pod",
    why="two pods on one machine that share its network compete for the same ports, and nothing "
    "here keeps them apart",
    help="declare the ports under containers[].ports, or add a podAntiAffinity on the host name",
)
def _host_network_crowded(spot: Spot) -> Iterator[Hit]:
    if _on_host(spot.body) and spot.pods > 1 and not (_ports(spot.body) or _apart(spot.body)):
        yield "spec.hostNetwork", f"{spot.pods} pods, no declared port, no anti-affinity"


def _apart(template: Body) -> bool:
    affinity = part(template, "spec", "affinity", "podAntiAffinity")
    terms = parts(affinity, "requiredDuringSchedulingIgnoredDuringExecution")
    return any(term.get("topologyKey") == HOST for term in terms)


@check(
    "spread-counts-dead-machines",
    "warning",
    "pod",
    why="without it a tainted or dead machine still counts in the skew, and replacements wait "
    "for room on it",
    help="set nodeTaintsPolicy: Honor in the constraint",
)
def _spread_counts_dead_machines(spot: Spot) -> Iterator[Hit]:
    for rule in parts(spot.body, "spec", "topologySpreadConstraints"):
        if rule.get("nodeTaintsPolicy") != "Honor":
            yield "spec.topologySpreadConstraints", f"over {text(rule, 'topologyKey')}"


@check(
    "spread-selects-others",
    "error",
    "pod",
    why="a constraint whose selector does not match the pod's own labels never counts it, and "
    "has no effect",
    help="select a label that the pods carry",
)
def _spread_selects_others(spot: Spot) -> Iterator[Hit]:
    for rule in parts(spot.body, "spec", "topologySpreadConstraints"):
        selector = part(rule, "labelSelector")
        if not selector or not selects(selector, labels(spot.body)):
            yield "spec.topologySpreadConstraints", f"over {text(rule, 'topologyKey')}"


@check(
    "slow-to-leave-dead-machines",
    "warning",
    "pod",
    why="by default a pod stays on an unreachable machine for 300 s, after the 40 s until it is "
    "detected",
    help="tolerate node.kubernetes.io/not-ready and unreachable with tolerationSeconds: 20",
)
def _slow_to_leave_dead_machines(spot: Spot) -> Iterator[Hit]:
    if not (spot.ends and (gpus(spot.body) or managed(spot.body))):
        return
    rules = parts(spot.body, "spec", "tolerations")
    timed = [(text(rule, "key"), number(rule, "tolerationSeconds")) for rule in rules]
    quick = {key for key, seconds in timed if seconds is not None and seconds <= QUICK_S}
    lacking = [key for key in DEAD if key not in quick]
    if lacking:
        yield "spec.tolerations", f"no short tolerationSeconds for {' and '.join(lacking)}"


@check(
    "toleration-impossible",
    "error",
    "pod",
    why="Kubernetes refuses a value with operator Exists, a missing key with another operator, and "
    "tolerationSeconds with another effect than NoExecute",
    help="kubectl explain pod.spec.tolerations",
)
def _toleration_impossible(spot: Spot) -> Iterator[Hit]:
    for rule in parts(spot.body, "spec", "tolerations"):
        exists = rule.get("operator") == "Exists"
        timed = number(rule, "tolerationSeconds") is not None
        wrong = [
            (exists and rule.get("value"), "a value with Exists"),
            (not exists and not rule.get("key"), "no key"),
            (timed and rule.get("effect") != "NoExecute", "tolerationSeconds without NoExecute"),
        ]
        yield from (("spec.tolerations", what) for found, what in wrong if found)


@check(
    "grace-too-short",
    "warning",
    "pod",
    why="the last checkpoint must be written between SIGTERM and SIGKILL; the default is 30 s",
    help="set terminationGracePeriodSeconds to the time that a checkpoint takes, 30 or more",
)
def _grace_too_short(spot: Spot) -> Iterator[Hit]:
    grace = number(spot.body, "spec", "terminationGracePeriodSeconds")
    if spot.ends and gpus(spot.body) and (grace is None or grace < GRACE_MIN_S):
        yield "spec.terminationGracePeriodSeconds", f"is {'missing' if grace is None else grace}"


@check(
    "companion-blocks-end",
    "warning",
    "pod",
    why="a pod has succeeded when all its containers have: a container that runs forever keeps "
    "the job from completing",
    help="make it an init container with restartPolicy: Always, which does not count",
)
def _companion_blocks_end(spot: Spot) -> Iterator[Hit]:
    found = [text(c, "name") for c in containers(spot.body)]
    if spot.ends and spot.engine != "Pod" and len(found) > 1:
        yield "spec.containers", f"{len(found)} containers ({', '.join(found)}) have to end"


@check(
    "mesh-blocks-end",
    "warning",
    "pod",
    why="the proxy of a service mesh outlives the training, so that the pod never ends, and it "
    "cannot carry NCCL",
    help='set the label sidecar.istio.io/inject: "false" (linkerd.io/inject: disabled)',
)
def _mesh_blocks_end(spot: Spot) -> Iterator[Hit]:
    said = {**labels(spot.body), **annotations(spot.body)}
    for key, on in (("sidecar.istio.io/inject", "true"), ("linkerd.io/inject", "enabled")):
        if spot.ends and said.get(key) == on:
            yield "metadata", f"{key} is {on}"


@check(
    "pinned-to-a-machine",
    "warning",
    "pod",
    why="a pod that can run on one machine only cannot be replaced when that machine fails",
    help="select machines by a label of their pool",
)
def _pinned_to_a_machine(spot: Spot) -> Iterator[Hit]:
    pinned = text(part(spot.body, "spec", "nodeSelector"), HOST)
    named = text(spot.body, "spec", "nodeName")
    if spot.ends and (pinned or named):
        yield "spec", f"it can run only on {pinned or named}"

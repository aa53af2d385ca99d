"""Traps of JobSets."""

from collections.abc import Iterator

from holdfast.drivers.kubernetes.lint.check import Hit, check
from holdfast.drivers.kubernetes.lint.look import count, name, number, part, parts, text, words
from holdfast.drivers.kubernetes.lint.spots import Spot, managed
from holdfast.drivers.kubernetes.manifests.names import LONGEST
from holdfast.drivers.kubernetes.manifests.request import Body

ALPHA = ("RestartJob", "RestartJobAndIgnoreMaxRestarts")
SPARE = ("spare", "standby")


def _jobs(spot: Spot) -> list[tuple[str, Body, Body]]:
    """Place, replicated Job and its JobSpec."""
    return [
        (f"spec.replicatedJobs[{index}]", job, part(job, "template", "spec"))
        for index, job in enumerate(parts(spot.body, "spec", "replicatedJobs"))
    ]


@check(
    "jobset-backoff-limit",
    "warning",
    "JobSet",
    why="with the default of 6 a child Job replaces failed pods on its own and ever more "
    "slowly, before the JobSet learns of it",
    help="set backoffLimit: 0 in the Job template",
)
def _jobset_backoff_limit(spot: Spot) -> Iterator[Hit]:
    for place, _, spec in _jobs(spot):
        if "backoffLimit" not in spec:
            yield f"{place}.template.spec.backoffLimit", "is 6, by default"


@check(
    "jobset-restart-policy",
    "warning",
    "JobSet",
    why="JobSet defaults to OnFailure: the kubelet restarts one container while the other ranks "
    "hang, and the JobSet is never notified",
    help="set restartPolicy: Never in the pod template",
)
def _jobset_restart_policy(spot: Spot) -> Iterator[Hit]:
    for place, _, spec in _jobs(spot):
        found = text(spec, "template", "spec", "restartPolicy")
        if found != "Never":
            yield f"{place}.template.spec.template.spec.restartPolicy", f"is {found or 'missing'}"


@check(
    "jobset-no-failure-policy",
    "warning",
    "JobSet",
    why="without failurePolicy the first child Job that fails ends the JobSet",
    help="set failurePolicy.maxRestarts",
)
def _jobset_no_failure_policy(spot: Spot) -> Iterator[Hit]:
    if "failurePolicy" not in part(spot.body, "spec"):
        yield "spec.failurePolicy", "is missing"


@check(
    "jobset-negative-priority",
    "error",
    "JobSet",
    why="JobSet copies the priority of its pods into a label, and a negative number is not a "
    "valid label: the pods are never created, and only the controller's log reports it",
    help="use a PriorityClass with a value of 0 or more",
)
def _jobset_negative_priority(spot: Spot) -> Iterator[Hit]:
    values = {name(b): number(b, "value") or 0 for b in spot.file.of("PriorityClass")}
    for place, _, spec in _jobs(spot):
        found = text(spec, "template", "spec", "priorityClassName")
        if values.get(found, 0) < 0:
            yield f"{place}.template.spec.template.spec.priorityClassName", f"is {values[found]}"


@check(
    "jobset-alpha",
    "warning",
    "JobSet",
    why="restarting single Jobs and restarting in place are alpha: where their gates are off, as "
    "by default, the JobSet is refused or restarted as a whole",
    help="kubectl -n jobset-system get deployment jobset-controller-manager -o yaml",
)
def _jobset_alpha(spot: Spot) -> Iterator[Hit]:
    policy = part(spot.body, "spec", "failurePolicy")
    found = [r for r in parts(policy, "rules") if r.get("action") in ALPHA]
    yield from (("spec.failurePolicy.rules", f"uses {r['action']}") for r in found)
    if policy.get("restartStrategy") == "InPlaceRestart":
        yield "spec.failurePolicy.restartStrategy", "is InPlaceRestart"


@check(
    "jobset-name-too-long",
    "error",
    "JobSet",
    why="pods are called JOBSET-JOB-INDEX-INDEX with six more characters: beyond "
    f"{LONGEST} JobSet refuses the set",
    help="choose shorter names",
)
def _jobset_name_too_long(spot: Spot) -> Iterator[Hit]:
    for place, job, spec in _jobs(spot):
        last, index = count(job, "replicas") - 1, count(spec, "completions") - 1
        longest = len(f"{name(spot.body)}-{text(job, 'name')}-{last}-{index}-xxxxx")
        if longest > LONGEST:
            yield f"{place}.name", f"the last pod's name has {longest} characters"


@check(
    "jobset-names-too-late",
    "error",
    "JobSet",
    why="ranks look each other up before they are Ready; without these their names do not resolve",
    help="remove network: the defaults are correct",
)
def _jobset_names_too_late(spot: Spot) -> Iterator[Hit]:
    network = part(spot.body, "spec", "network")
    for key in ("enableDNSHostnames", "publishNotReadyAddresses"):
        if network.get(key) is False:
            yield f"spec.network.{key}", "is false"


@check(
    "jobset-waits-for-spares",
    "warning",
    "JobSet",
    why="a set that succeeds when all its Jobs have succeeded also waits for spares, which never "
    "complete",
    help="set successPolicy: {operator: All, targetReplicatedJobs: [...]} without the spares",
)
def _jobset_waits_for_spares(spot: Spot) -> Iterator[Hit]:
    names = [text(job, "name") for _, job, _ in _jobs(spot)]
    policy = part(spot.body, "spec", "successPolicy")
    waits = set(words(policy, "targetReplicatedJobs") or names)
    for found in names:
        if any(s in found for s in SPARE) and found in waits and len(names) > 1:
            yield "spec.successPolicy", f"waits for {found}"


@check(
    "jobset-first-ends-all",
    "warning",
    "JobSet",
    why="with operator Any the first child Job that succeeds ends the others",
    help="set operator: All",
)
def _jobset_first_ends_all(spot: Spot) -> Iterator[Hit]:
    several = sum(count(job, "replicas") for _, job, _ in _jobs(spot)) > 1
    if several and text(spot.body, "spec", "successPolicy", "operator") == "Any":
        yield "spec.successPolicy.operator", "is Any"


@check(
    "jobset-unknown-job",
    "error",
    "JobSet",
    why="a rule for a replicated Job that does not exist is refused or never applies",
    help="name one of spec.replicatedJobs",
)
def _jobset_unknown_job(spot: Spot) -> Iterator[Hit]:
    known = {text(job, "name") for _, job, _ in _jobs(spot)}
    spec = part(spot.body, "spec")
    named = {
        "successPolicy": words(spec, "successPolicy", "targetReplicatedJobs"),
        "coordinator": [text(spec, "coordinator", "replicatedJob")],
        "failurePolicy": [
            word
            for rule in parts(spec, "failurePolicy", "rules")
            for word in words(rule, "targetReplicatedJobs")
        ],
        "replicatedJobs": [
            text(item, "name") for _, job, _ in _jobs(spot) for item in parts(job, "dependsOn")
        ],
    }
    for key, found in named.items():
        for word in sorted({*found} - known - {""}):
            yield f"spec.{key}", f"there is no {word!r}"


@check(
    "jobset-startup-policy",
    "warning",
    "JobSet",
    why="startupPolicy is deprecated; use dependsOn for the order of Jobs",
    help="use dependsOn in the replicated Job",
)
def _jobset_startup_policy(spot: Spot) -> Iterator[Hit]:
    if "startupPolicy" in part(spot.body, "spec"):
        yield "spec.startupPolicy", "is set"


@check(
    "managed-jobset-restarts",
    "error",
    "JobSet",
    why="a restart of the set recreates all pods, including healthy ones with snapshots in "
    "memory; Holdfast restarts only what is necessary",
    help="set failurePolicy.maxRestarts: 0",
)
def _managed_jobset_restarts(spot: Spot) -> Iterator[Hit]:
    agents = any(managed(part(spec, "template")) for _, _, spec in _jobs(spot))
    if agents and number(spot.body, "spec", "failurePolicy", "maxRestarts"):
        yield "spec.failurePolicy.maxRestarts", "is not 0"

"""Traps of Volcano's Jobs."""

from collections.abc import Iterator

from holdfast.drivers.kubernetes.lint.check import Hit, check
from holdfast.drivers.kubernetes.lint.look import count, number, part, parts, text, value, words
from holdfast.drivers.kubernetes.lint.spots import Spot, managed
from holdfast.drivers.kubernetes.manifests.request import Body

KIND = "Volcano Job"
RETRIES_MIN = 100


def _tasks(spot: Spot) -> list[tuple[str, Body]]:
    found = parts(spot.body, "spec", "tasks")
    return [(f"spec.tasks[{index}]", task) for index, task in enumerate(found)]


def _policies(spot: Spot) -> list[tuple[str, Body]]:
    """Policies of the job and of its tasks."""
    places = [("spec", part(spot.body, "spec")), *_tasks(spot)]
    return [(f"{p}.policies", policy) for p, body in places for policy in parts(body, "policies")]


def _pods(spot: Spot) -> int:
    return sum(count(task, "replicas") for _, task in _tasks(spot))


def _agents(spot: Spot) -> bool:
    return any(managed(part(task, "template")) for _, task in _tasks(spot))


@check(
    "volcano-max-retry",
    "error",
    KIND,
    why="maxRetry is 3 by default and every RestartPod counts: after three lost pods in its whole "
    "life the job is Failed",
    help="set maxRetry: 2147483647 where single pods are restarted",
)
def _volcano_max_retry(spot: Spot) -> Iterator[Hit]:
    single = any(policy.get("action") == "RestartPod" for _, policy in _policies(spot))
    found = number(spot.body, "spec", "maxRetry")
    if single and (found is None or found < RETRIES_MIN):
        yield "spec.maxRetry", f"is {'3, by default' if found is None else found}, with RestartPod"


@check(
    "volcano-no-policies",
    "warning",
    KIND,
    why="without policies a failed pod is only counted: the others run on without it until the end",
    help="set policies for PodFailed and PodEvicted (RestartJob, or RestartPod with agents)",
)
def _volcano_no_policies(spot: Spot) -> Iterator[Hit]:
    told = {text(p, "event") for _, p in _policies(spot)}
    told |= {word for _, p in _policies(spot) for word in words(p, "events")}
    for event in ("PodFailed", "PodEvicted"):
        if event not in told and "*" not in told and _pods(spot) > 1:
            yield "spec.policies", f"nothing for {event}"


@check(
    "volcano-policy-impossible",
    "error",
    KIND,
    why="a policy is for events or for one exit code, never both, never code 0, and no event and "
    "no code may have two",
    help="write one policy for each exit code",
)
def _volcano_policy_impossible(spot: Spot) -> Iterator[Hit]:
    seen: set[tuple[str, object]] = set()
    for place, policy in _policies(spot):
        code = policy.get("exitCode")
        events = [*words(policy, "events"), *filter(None, (text(policy, "event"),))]
        if code is not None and (events or code == 0 or not isinstance(code, int)):
            yield place, f"exitCode {code} with {', '.join(events) or 'no event'}"
        for one in (*events, *(() if code is None else (str(code),))):
            if (place, one) in seen:
                yield place, f"{one} is there twice"
            seen.add((place, one))


@check(
    "volcano-too-few-pods",
    "error",
    KIND,
    why="the minimum exceeds the number of pods: the job never starts, or never succeeds",
    help="keep minAvailable and minSuccess at the number of nodes that train",
)
def _volcano_too_few_pods(spot: Spot) -> Iterator[Hit]:
    for key in ("minAvailable", "minSuccess"):
        if (number(spot.body, "spec", key) or 0) > _pods(spot):
            yield f"spec.{key}", f"is {value(spot.body, 'spec', key)} of {_pods(spot)}"
    for place, task in _tasks(spot):
        if (number(task, "minAvailable") or 0) > count(task, "replicas"):
            yield f"{place}.minAvailable", f"is {task['minAvailable']}"


@check(
    "volcano-waits-for-spares",
    "warning",
    KIND,
    why="a job that starts with some of its pods still completes only when all pods have: spares "
    "never do",
    help="set minSuccess to the number of nodes that train",
)
def _volcano_waits_for_spares(spot: Spot) -> Iterator[Hit]:
    least = number(spot.body, "spec", "minAvailable")
    fewer = least is not None and 0 < least < _pods(spot)
    if fewer and number(spot.body, "spec", "minSuccess") is None:
        yield "spec.minSuccess", f"is missing: {least} of {_pods(spot)} pods train"


@check(
    "volcano-restart-policy",
    "error",
    KIND,
    why="without restartPolicy pods get Always, which starts a container again that has succeeded: "
    "such a pod never ends",
    help="set restartPolicy: Never in the pod template",
)
def _volcano_restart_policy(spot: Spot) -> Iterator[Hit]:
    for place, task in _tasks(spot):
        found = text(task, "template", "spec", "restartPolicy")
        if found not in ("Never", "OnFailure"):
            yield f"{place}.template.spec.restartPolicy", f"is {found or 'missing'}"


@check(
    "volcano-names-too-late",
    "warning",
    KIND,
    why="the svc plugin publishes a pod's name only once it is Ready; ranks look each other up "
    "before",
    help="use plugins: {svc: [--publish-not-ready-addresses]}",
)
def _volcano_names_too_late(spot: Spot) -> Iterator[Hit]:
    plugins = part(spot.body, "spec", "plugins")
    said = words(plugins, "svc")
    early = any("publish-not-ready-addresses" in w and "false" not in w for w in said)
    probed = any(
        "readinessProbe" in container
        for _, task in _tasks(spot)
        for container in parts(task, "template", "spec", "containers")
    )
    if "svc" in plugins and probed and not early:
        yield "spec.plugins.svc", "without --publish-not-ready-addresses"


@check(
    "managed-volcano",
    "error",
    KIND,
    why="a deleted pod must be recreated alone (RestartPod), and the job must complete with its "
    "training nodes (minSuccess); a full restart discards what agents keep in memory",
    help="use RestartPod for PodFailed and PodEvicted, and minSuccess",
)
def _managed_volcano(spot: Spot) -> Iterator[Hit]:
    if not _agents(spot):
        return
    for place, policy in _policies(spot):
        if policy.get("action") in ("RestartJob", "RestartTask"):
            yield place, f"has {policy['action']}"
    if number(spot.body, "spec", "minSuccess") is None:
        yield "spec.minSuccess", "is missing"

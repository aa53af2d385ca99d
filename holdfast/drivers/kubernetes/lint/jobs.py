"""Traps of batch/v1 Jobs and CronJobs, wherever they stand."""

import re
from collections.abc import Iterator

from holdfast.drivers.kubernetes.lint.check import Hit, check
from holdfast.drivers.kubernetes.lint.look import count, name, number, part, parts, text, value
from holdfast.drivers.kubernetes.lint.spots import (
    RUNTIMES,
    Spot,
    containers,
    env,
    gpus,
    managed,
    program,
    runs,
)
from holdfast.drivers.kubernetes.manifests.names import LONGEST

CRON_LONGEST = 52
CRON_SUFFIX = 9  # a dash and the time in minutes
LOGS_MIN_S = 300


def _policy(spot: Spot) -> str:
    return text(spot.body, "template", "spec", "restartPolicy")


def _indexed(spot: Spot) -> bool:
    return spot.body.get("completionMode") == "Indexed"


@check(
    "job-restart-policy",
    "error",
    "Job",
    "CronJob",
    why="the default, Always, is not allowed for Jobs: set Never or OnFailure",
    help="set restartPolicy: Never in the pod template",
)
def _job_restart_policy(spot: Spot) -> Iterator[Hit]:
    keys = ("spec",) if spot.kind == "Job" else ("spec", "jobTemplate", "spec")
    found = text(spot.body, *keys, "template", "spec", "restartPolicy")
    if found not in ("Never", "OnFailure"):
        yield ".".join((*keys, "template.spec.restartPolicy")), f"is {found or 'missing'}"


@check(
    "job-policy-needs-never",
    "error",
    "job",
    why="podFailurePolicy and backoffLimitPerIndex count pods that failed; with OnFailure the "
    "kubelet restarts containers in place and Kubernetes refuses the combination",
    help="set restartPolicy: Never in the pod template",
)
def _job_policy_needs_never(spot: Spot) -> Iterator[Hit]:
    for key in ("podFailurePolicy", "backoffLimitPerIndex"):
        if key in spot.body and _policy(spot) != "Never":
            yield key, f"with restartPolicy {_policy(spot) or '(missing)'}"


@check(
    "job-replacement-policy",
    "error",
    "job",
    why="with podFailurePolicy the only allowed podReplacementPolicy is Failed",
    help="remove podFailurePolicy: TerminatingOrFailed also replaces pods of failed machines",
)
def _job_replacement_policy(spot: Spot) -> Iterator[Hit]:
    found = spot.body.get("podReplacementPolicy", "Failed")
    if "podFailurePolicy" in spot.body and found != "Failed":
        yield "podReplacementPolicy", f"is {found} with podFailurePolicy"


@check(
    "job-frozen-by-dead-machine",
    "warning",
    "job",
    why="a pod on a failed machine stays Terminating, and podReplacementPolicy Failed (forced by "
    "podFailurePolicy) waits for it: it is not replaced until the machine is marked as out "
    "of service",
    help="use podReplacementPolicy: TerminatingOrFailed without podFailurePolicy",
)
def _job_frozen_by_dead_machine(spot: Spot) -> Iterator[Hit]:
    forced = "podFailurePolicy" in spot.body
    if forced or spot.body.get("podReplacementPolicy") == "Failed":
        yield "podReplacementPolicy", "is Failed" + (" by podFailurePolicy" if forced else "")


@check(
    "job-needs-indexed",
    "error",
    "job",
    why="successPolicy, backoffLimitPerIndex and maxFailedIndexes exist for Indexed Jobs only",
    help="set completionMode: Indexed",
)
def _job_needs_indexed(spot: Spot) -> Iterator[Hit]:
    for key in ("successPolicy", "backoffLimitPerIndex", "maxFailedIndexes"):
        if key in spot.body and not _indexed(spot):
            yield key, "without completionMode Indexed"


@check(
    "job-success-count",
    "error",
    "job",
    why="succeededCount exceeds the number of pods: this rule never applies",
    help="set succeededCount to the number of nodes that train",
)
def _job_success_count(spot: Spot) -> Iterator[Hit]:
    most = count(spot.body, "completions")
    if spot.engine in RUNTIMES:
        return  # a TrainJob sets the size
    for rule in parts(spot.body, "successPolicy", "rules"):
        if (number(rule, "succeededCount") or 0) > most:
            yield "successPolicy", f"succeededCount {rule['succeededCount']} of {most}"


@check(
    "job-policy-container",
    "error",
    "job",
    why="a rule for exit codes of a container that does not exist never applies",
    help="name a container of the pod template",
)
def _job_policy_container(spot: Spot) -> Iterator[Hit]:
    known = {text(c, "name") for c in containers(part(spot.body, "template"), init=True)}
    for rule in parts(spot.body, "podFailurePolicy", "rules"):
        named = text(rule, "onExitCodes", "containerName")
        if named and named not in known:
            yield "podFailurePolicy", f"no container is called {named!r}"


@check(
    "job-eviction-counts",
    "warning",
    "job",
    why="a drained or preempted pod counts as failed unless a rule ignores DisruptionTarget",
    help="add {action: Ignore, onPodConditions: [{type: DisruptionTarget, status: 'True'}]} first",
)
def _job_eviction_counts(spot: Spot) -> Iterator[Hit]:
    rules = parts(spot.body, "podFailurePolicy", "rules")
    kinds = [text(c, "type") for rule in rules for c in parts(rule, "onPodConditions")]
    if rules and "DisruptionTarget" not in kinds:
        yield "podFailurePolicy", "no rule for DisruptionTarget"


@check(
    "job-backoff-default",
    "warning",
    "Job",
    "CronJob",
    why="without backoffLimit the Job fails after its default of 6 pod failures, counted over "
    "its lifetime",
    help="set backoffLimit to the number of tolerated failures, or to 0 if something else "
    "restarts the Job",
)
def _job_backoff_default(spot: Spot) -> Iterator[Hit]:
    keys = ("spec",) if spot.kind == "Job" else ("spec", "jobTemplate", "spec")
    spec = part(spot.body, *keys)
    limits = {"backoffLimit", "backoffLimitPerIndex"} & spec.keys()
    if not limits and count(spec, "parallelism") > 1:
        yield ".".join((*keys, "backoffLimit")), "is 6, by default"


@check(
    "job-falls-with-one-pod",
    "warning",
    "Job",
    why="with backoffLimit 0 one `kubectl delete pod`, or one drained machine, fails the Job and "
    "kills every healthy pod",
    help="raise backoffLimit, or use a controller that restarts the Job (JobSet, Holdfast)",
)
def _job_falls_with_one_pod(spot: Spot) -> Iterator[Hit]:
    if (
        count(spot.body, "spec", "parallelism") > 1
        and value(spot.body, "spec", "backoffLimit") == 0
    ):
        yield "spec.backoffLimit", "is 0 for several pods"


@check(
    "job-growing-delay",
    "warning",
    "Job",
    why="every failure of any pod doubles one delay for the whole Job, 10 s up to 10 min, and "
    "only a pod that succeeds resets it, which in training none does before the end",
    help="use backoffLimitPerIndex, keep pods alive and restart processes in them, or keep spares",
)
def _job_growing_delay(spot: Spot) -> Iterator[Hit]:
    spec = part(spot.body, "spec")
    limit = number(spec, "backoffLimit")
    alone = "backoffLimitPerIndex" not in spec and not managed(part(spec, "template"))
    if count(spec, "parallelism") > 1 and alone and (limit is None or limit > 3):
        yield "spec.backoffLimit", "is one for all pods"


@check(
    "job-name-too-long",
    "error",
    "Job",
    "CronJob",
    why=f"a pod's host name is the Job's name and the index; beyond {LONGEST} characters it has no "
    "name in DNS, and Kubernetes refuses an Indexed Job",
    help="choose a shorter name",
)
def _job_name_too_long(spot: Spot) -> Iterator[Hit]:
    cron = spot.kind == "CronJob"
    spec = part(spot.body, "spec", *(("jobTemplate", "spec") if cron else ()))
    last = f"-{count(spec, 'completions') - 1}" if spec.get("completionMode") == "Indexed" else ""
    length = len(name(spot.body)) + len(last) + (CRON_SUFFIX if cron else 0)
    if length > LONGEST:
        yield "metadata.name", f"the last pod's name has {length} characters"


@check(
    "job-hostnames-without-service",
    "error",
    "Job",
    why="pods of an Indexed Job have names in DNS only with `subdomain`, which names a headless "
    "Service",
    help="add a Service with clusterIP: None and set subdomain to its name",
)
def _job_hostnames_without_service(spot: Spot) -> Iterator[Hit]:
    template = part(spot.body, "spec", "template")
    first = re.compile(rf"(?<![\w-]){re.escape(name(spot.body))}-0\b")
    said = [word for c in containers(template) for word in (*program(c), *env(c).values())]
    meant = any(isinstance(word, str) and first.search(word) for word in said)
    if meant and not text(template, "spec", "subdomain"):
        yield "spec.template.spec.subdomain", f"is missing, and {name(spot.body)}-0 is used"


@check(
    "job-not-all-at-once",
    "error",
    "job",
    why="ranks that train together must run at the same time; with fewer pods at once than there "
    "are indexes the rendezvous never completes",
    help="set parallelism to the number of completions",
)
def _job_not_all_at_once(spot: Spot) -> Iterator[Hit]:
    template = part(spot.body, "template")
    line = [word for c in containers(template) for word in program(c)]
    together = managed(template) or any("torchrun" in w or "rdzv" in w for w in line)
    if together and "completions" in spot.body:
        most, some = count(spot.body, "completions"), count(spot.body, "parallelism")
        if most > some and not any("standalone" in w for w in line):
            yield "parallelism", f"is {some} of {most} completions"


@check(
    "job-made-by-nobody",
    "warning",
    "Job",
    why="with managedBy the built-in controller creates no pods; it is for Jobs that run in "
    "another cluster",
    help="leave managedBy out, or set the label kueue.x-k8s.io/queue-name for MultiKueue",
)
def _job_made_by_nobody(spot: Spot) -> Iterator[Hit]:
    found = text(spot.body, "spec", "managedBy")
    if found not in ("", "kubernetes.io/job-controller", "kueue.x-k8s.io/multikueue"):
        yield "spec.managedBy", f"is {found}"


@check(
    "job-logs-go-at-once",
    "warning",
    "job",
    why="when a finished Job is removed, its pods and their logs are removed too",
    help="set ttlSecondsAfterFinished to a day (86400)",
)
def _job_logs_go_at_once(spot: Spot) -> Iterator[Hit]:
    found = number(spot.body, "ttlSecondsAfterFinished")
    if found is not None and found < LOGS_MIN_S:
        yield "ttlSecondsAfterFinished", f"is {found}"


# ── CronJob ───────────────────────────────────────────────────────────────────────────────────


@check(
    "cronjob-name-too-long",
    "error",
    "CronJob",
    why=f"a CronJob appends the time to the names of its Jobs: {CRON_LONGEST} characters at most",
    help="choose a shorter name",
)
def _cronjob_name_too_long(spot: Spot) -> Iterator[Hit]:
    if len(name(spot.body)) > CRON_LONGEST:
        yield "metadata.name", f"has {len(name(spot.body))} characters"


@check(
    "cronjob-embeds-training",
    "warning",
    "CronJob",
    why="concurrencyPolicy looks only at the CronJob's own Jobs, and a training that is part of it "
    "cannot be resumed or queued separately",
    help="let the CronJob submit the job: holdfast submit job.yaml",
)
def _cronjob_embeds_training(spot: Spot) -> Iterator[Hit]:
    spec = part(spot.body, "spec", "jobTemplate", "spec")
    if count(spec, "parallelism") > 1 or gpus(part(spec, "template")):
        yield "spec.jobTemplate", "trains by itself"


@check(
    "cronjob-overlaps",
    "warning",
    "CronJob",
    why="the default starts the next run while the previous one is still training",
    help="set concurrencyPolicy: Forbid",
)
def _cronjob_overlaps(spot: Spot) -> Iterator[Hit]:
    if "concurrencyPolicy" not in part(spot.body, "spec"):
        yield "spec.concurrencyPolicy", "is Allow, by default"


@check(
    "cronjob-start-deadline",
    "warning",
    "CronJob",
    why="without it, a controller that was down counts all missed starts and may stop "
    "scheduling; below 10 s a start can be missed between two checks of the controller",
    help="set startingDeadlineSeconds to 3600",
)
def _cronjob_start_deadline(spot: Spot) -> Iterator[Hit]:
    found = number(spot.body, "spec", "startingDeadlineSeconds")
    if found is None or found < 10:
        yield "spec.startingDeadlineSeconds", f"is {'missing' if found is None else found}"


@check(
    "cronjob-zone-in-schedule",
    "error",
    "CronJob",
    why="Kubernetes refuses TZ and CRON_TZ in the schedule",
    help="set spec.timeZone",
)
def _cronjob_zone_in_schedule(spot: Spot) -> Iterator[Hit]:
    if "TZ=" in text(spot.body, "spec", "schedule"):
        yield "spec.schedule", f"is {text(spot.body, 'spec', 'schedule')!r}"


@check(
    "cronjob-restarts-submission",
    "warning",
    "CronJob",
    why="a retried submission may start the same training twice",
    help="set backoffLimit: 0 in the Job's spec",
)
def _cronjob_restarts_submission(spot: Spot) -> Iterator[Hit]:
    spec = part(spot.body, "spec", "jobTemplate", "spec")
    if runs(part(spec, "template"), "submit") and number(spec, "backoffLimit") != 0:
        yield "spec.jobTemplate.spec.backoffLimit", "is not 0"

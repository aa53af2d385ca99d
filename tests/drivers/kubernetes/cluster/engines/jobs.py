"""batch/v1 Job: Indexed or not, with its growing delays, success rules and suspension.

The delay before a replacement doubles with every failure, whatever its cause, evictions included;
with `backoffLimitPerIndex` each index has its own. A pod that is being deleted is replaced at once
if `podReplacementPolicy` says so, and counted as failed; under `Failed` not before it has ended.
"""

import time
from dataclasses import dataclass, field

from holdfast.drivers.kubernetes.cluster import JOBS, PODS
from tests.drivers.kubernetes.cluster.conditions import is_true, set_condition
from tests.drivers.kubernetes.cluster.engines.failures import decision
from tests.drivers.kubernetes.cluster.loops import soonest
from tests.drivers.kubernetes.cluster.making import (
    active,
    children,
    delete,
    going,
    make_pod,
    phase,
    suffix,
    unhold,
)
from tests.drivers.kubernetes.cluster.pace import Pace
from tests.drivers.kubernetes.cluster.refusal import Body
from tests.drivers.kubernetes.cluster.store import Store, written

TRACKED = "batch.kubernetes.io/job-tracking"
OWN = "kubernetes.io/job-controller"
INDEX = "batch.kubernetes.io/job-completion-index"


@dataclass
class Account:
    """What the controller remembers of one Job; the real one keeps it in the status."""

    counted: set[str] = field(default_factory=set)  # UIDs of pods
    succeeded: set[str] = field(default_factory=set)  # UIDs
    done: set[int] = field(default_factory=set)  # indexes
    failed: int = 0
    failures: dict[int | None, int] = field(default_factory=dict)  # of each index, or of all
    last: dict[int | None, float] = field(default_factory=dict)  # when
    started: float = 0.0
    ended: float = 0.0
    fatal: str = ""  # what a rule of podFailurePolicy has said


@dataclass
class Jobs:
    """Acts on all Jobs."""

    store: Store
    pace: Pace
    accounts: dict[str, Account] = field(default_factory=dict)

    def step(self) -> float | None:
        """Act; how long until something is due."""
        self._release()
        return soonest(*(self._job(job) for job in self.store.all(JOBS) if _ours(job)))

    def _release(self) -> None:
        """Pods whose Job is gone are held by nobody."""
        jobs = {job["metadata"]["uid"] for job in self.store.all(JOBS)}
        for pod in self.store.all(PODS):
            owners = {o["uid"] for o in pod["metadata"].get("ownerReferences", [])}
            if TRACKED in pod["metadata"].get("finalizers", []) and not owners & jobs:
                unhold(self.store, pod, TRACKED)

    def _job(self, job: Body) -> float | None:
        meta = job["metadata"]
        account = self.accounts.setdefault(meta["uid"], Account())
        pods = children(self.store, job)
        if finished(job) or going(job):
            for pod in pods:
                unhold(self.store, pod, TRACKED)
            return self._expire(job, account)
        self._count(job, pods, account)
        over = self._over(job, account)
        if over is not None:
            self._end(job, pods, account, *over)
            return 0.0
        if job["spec"]["suspend"]:
            self._suspend(job, pods, account)
            return None
        account.started = account.started or time.monotonic()
        wait = self._fill(job, children(self.store, job), account)
        self._tell(job, account)
        return soonest(wait, self._deadline(job, account))

    # ── counting ──────────────────────────────────────────────────────────────────────────────

    def _count(self, job: Body, pods: list[Body], account: Account) -> None:
        eager = job["spec"]["podReplacementPolicy"] == "TerminatingOrFailed"
        for pod in pods:
            uid, ended = pod["metadata"]["uid"], phase(pod) in ("Succeeded", "Failed")
            if uid in account.counted:
                if ended or going(pod):
                    unhold(self.store, pod, TRACKED)
                continue
            if ended or (going(pod) and (eager or not _bound(pod))):
                account.counted.add(uid)
                self._counted(job, pod, account)
                unhold(self.store, pod, TRACKED)

    def _counted(self, job: Body, pod: Body, account: Account) -> None:
        index = _index(pod)
        if phase(pod) == "Succeeded":
            account.succeeded.add(pod["metadata"]["uid"])
            if index is not None:
                account.done.add(index)
            return
        if job["spec"]["suspend"]:
            return
        key = index if "backoffLimitPerIndex" in job["spec"] else None
        account.failures[key] = account.failures.get(key, 0) + 1  # the delay grows in any case
        account.last[key] = time.monotonic()
        match decision(job, pod):
            case "FailJob":
                account.fatal = f"Container of pod {pod['metadata']['name']} matched a FailJob rule"
            case "Count":
                account.failed += 1

    def _over(self, job: Body, account: Account) -> tuple[str, str, str] | None:
        """The condition a Job ends with, its reason and message."""
        spec = job["spec"]
        if account.fatal:
            return "Failed", "PodFailurePolicy", account.fatal
        rules = spec.get("successPolicy", {}).get("rules", [])
        for rule in rules:
            if len(account.done) >= rule.get("succeededCount", spec["completions"]):
                return "Complete", "SuccessPolicy", "Matched rules at index 0"
        if _completed(spec, account):
            return "Complete", "CompletionsReached", "Reached expected number of succeeded pods"
        per_index = spec.get("backoffLimitPerIndex")
        exhausted = (
            [] if per_index is None else [i for i, n in account.failures.items() if n > per_index]
        )
        if len(exhausted) > spec.get("maxFailedIndexes", len(exhausted)):
            return "Failed", "MaxFailedIndexesExceeded", "Job has too many failed indexes"
        if account.failed > spec["backoffLimit"]:
            return "Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit"
        left = self._deadline(job, account)
        if left is not None and left <= 0:
            return "Failed", "DeadlineExceeded", "Job was active longer than specified deadline"
        return None

    def _deadline(self, job: Body, account: Account) -> float | None:
        limit = job["spec"].get("activeDeadlineSeconds")
        if limit is None or not account.started:
            return None
        return account.started + self.pace.s(limit) - time.monotonic()

    # ── acting ────────────────────────────────────────────────────────────────────────────────

    def _fill(self, job: Body, pods: list[Body], account: Account) -> float | None:
        """Make pods that are missing and due; how long until the next is."""
        eager = job["spec"]["podReplacementPolicy"] == "TerminatingOrFailed"
        taken = [p for p in pods if active(p) or (going(p) and not eager and _unended(p))]
        waits: list[float | None] = []
        for index in self._missing(job, taken, account):
            left = self._delay(job, index, account)
            if left > 0:
                waits.append(left)
            else:
                self._make(job, index)
        return soonest(*waits)

    def _missing(self, job: Body, taken: list[Body], account: Account) -> list[int | None]:
        spec = job["spec"]
        room = spec["parallelism"] - len(taken)
        if spec["completionMode"] != "Indexed":
            self._too_many(taken, spec["parallelism"])
            left = spec.get("completions", spec["parallelism"]) - len(account.succeeded)
            return [None] * max(0, min(room, left - len(taken)))
        used = {_index(pod) for pod in taken}
        for pod in taken:
            if (_index(pod) or 0) >= spec["completions"]:
                delete(self.store, PODS, pod)
        limit = spec.get("backoffLimitPerIndex")
        lost = {i for i, n in account.failures.items() if limit is not None and n > limit}
        free = [i for i in range(spec["completions"]) if i not in used | account.done | lost]
        return list(free[: max(0, room)])

    def _too_many(self, taken: list[Body], parallelism: int) -> None:
        for pod in [p for p in taken if active(p)][parallelism:]:
            delete(self.store, PODS, pod)

    def _delay(self, job: Body, index: int | None, account: Account) -> float:
        key = index if "backoffLimitPerIndex" in job["spec"] else None
        failures = account.failures.get(key, 0)
        if not failures:
            return 0.0
        whole = self.pace.backoff_s * 2.0 ** min(failures - 1, 20)
        seconds = min(self.pace.job_backoff_max_s, whole)
        return account.last[key] + self.pace.s(seconds) - time.monotonic()

    def _make(self, job: Body, index: int | None) -> None:
        name, template = job["metadata"]["name"], job["spec"]["template"]
        if index is None:
            pod = f"{name}-{suffix()}"
            made = make_pod(self.store, job, JOBS, template, pod)
        else:
            template = _indexed(template, name, index)
            marks = {INDEX: str(index)}
            pod = f"{name}-{index}-{suffix()}"
            made = make_pod(self.store, job, JOBS, template, pod, labels=marks, annotations=marks)
        meta = made["metadata"]
        self.store.change(PODS, meta["namespace"], meta["name"], _held)

    def _suspend(self, job: Body, pods: list[Body], account: Account) -> None:
        account.started = 0.0
        account.failures.clear()
        account.last.clear()
        for pod in pods:
            if active(pod):
                delete(self.store, PODS, pod)
        meta = job["metadata"]

        def edit(body: Body) -> None:
            set_condition(body, "Suspended", "True", "JobSuspended", "Job suspended")
            body["status"].pop("startTime", None)

        self.store.change(JOBS, meta["namespace"], meta["name"], edit)
        self._tell(job, account)

    def _end(
        self, job: Body, pods: list[Body], account: Account, type_: str, reason: str, message: str
    ) -> None:
        """All pods go first; the condition is written when none is left."""
        meta = job["metadata"]
        first = "SuccessCriteriaMet" if type_ == "Complete" else "FailureTarget"

        def begin(body: Body) -> None:
            set_condition(body, first, "True", reason, message)

        self.store.change(JOBS, meta["namespace"], meta["name"], begin)
        for pod in pods:
            account.counted.add(pod["metadata"]["uid"])
            unhold(self.store, pod, TRACKED)
            if active(pod):
                delete(self.store, PODS, pod)
        if any(_unended(p) for p in children(self.store, job)):
            return
        account.ended = time.monotonic()
        self._tell(job, account)
        now = written(self.store.clock())

        def edit(body: Body) -> None:
            set_condition(body, type_, "True", reason, message)
            if type_ == "Complete":
                body["status"]["completionTime"] = now

        self.store.change(JOBS, meta["namespace"], meta["name"], edit)

    def _tell(self, job: Body, account: Account) -> None:
        meta, now = job["metadata"], written(self.store.clock())
        pods = children(self.store, job)
        alive = [p for p in pods if active(p)]
        suspended = job["spec"]["suspend"]

        def edit(body: Body) -> None:
            status = body.setdefault("status", {})
            status["active"] = len(alive)
            status["ready"] = sum(is_true(p, "Ready") for p in alive)
            status["terminating"] = sum(going(p) and _unended(p) for p in pods)
            status["succeeded"], status["failed"] = len(account.succeeded), account.failed
            if job["spec"]["completionMode"] == "Indexed":
                status["completedIndexes"] = ",".join(map(str, sorted(account.done)))
            if not suspended:
                status.setdefault("startTime", now)
                if is_true(body, "Suspended"):
                    set_condition(body, "Suspended", "False", "JobResumed", "Job resumed")

        self.store.change(JOBS, meta["namespace"], meta["name"], edit)

    def _expire(self, job: Body, account: Account) -> float | None:
        keep = job["spec"].get("ttlSecondsAfterFinished")
        if keep is None or not finished(job) or going(job):
            return None
        left = account.ended + self.pace.s(keep) - time.monotonic()
        if left <= 0:
            delete(self.store, JOBS, job)
        return max(0.0, left) or None


def finished(job: Body) -> bool:
    """Whether a Job has come to its end."""
    return is_true(job, "Complete") or is_true(job, "Failed")


def _ours(job: Body) -> bool:
    return job["spec"].get("managedBy", OWN) in (OWN,)


def _completed(spec: Body, account: Account) -> bool:
    if spec["completionMode"] == "Indexed":
        return len(account.done) >= int(spec["completions"])
    if "completions" not in spec:
        return bool(account.succeeded)
    return len(account.succeeded) >= int(spec["completions"])


def _index(pod: Body) -> int | None:
    found = pod["metadata"].get("annotations", {}).get(INDEX)
    return None if found is None else int(found)


def _bound(pod: Body) -> bool:
    return bool(pod["spec"].get("nodeName"))


def _unended(pod: Body) -> bool:
    return phase(pod) not in ("Succeeded", "Failed")


def _held(pod: Body) -> None:
    pod["metadata"]["finalizers"] = [*pod["metadata"].get("finalizers", []), TRACKED]


def _indexed(template: Body, name: str, index: int) -> Body:
    """The template with a host name and the variable for the index."""
    variable = {"name": "JOB_COMPLETION_INDEX", "value": str(index)}
    spec = template["spec"]
    containers = [{**c, "env": [*c.get("env", []), variable]} for c in spec["containers"]]
    named = {**spec, "hostname": f"{name}-{index}", "containers": containers}
    return {**template, "spec": named}

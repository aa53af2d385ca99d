"""Volcano's Job: tasks, policies, `minSuccess`, and its own idea of phases.

Every deletion of a pod is `PodEvicted` to it. The first policy that fits decides, those of a task
before those of the job; each restart counts against `maxRetry`. RestartPod moves the whole job to
Restarting and back while its other pods run on.
"""

from dataclasses import dataclass, field
from typing import Any

from holdfast.drivers.kubernetes.cluster import PODS
from tests.drivers.kubernetes.cluster.engines.endings import Times
from tests.drivers.kubernetes.cluster.kinds import VOLCANO_GROUPS, VOLCANO_JOBS
from tests.drivers.kubernetes.cluster.loops import soonest
from tests.drivers.kubernetes.cluster.making import (
    active,
    children,
    delete,
    exit_code,
    going,
    make,
    make_pod,
    phase,
)
from tests.drivers.kubernetes.cluster.pace import Pace
from tests.drivers.kubernetes.cluster.refusal import Body
from tests.drivers.kubernetes.cluster.store import Store

GROUP = "volcano.sh"
OVER = ("Completed", "Failed", "Terminated", "Aborted")
MAX_RETRY = 3


@dataclass
class Volcano:
    """Acts on all Jobs of Volcano."""

    store: Store
    pace: Pace
    seen: set[str] = field(default_factory=set)  # UIDs of pods whose end was acted on
    succeeded: dict[str, set[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._times = Times(self.pace)

    def step(self) -> float | None:
        """Act; how long until something is due."""
        jobs = [job for job in self.store.all(VOLCANO_JOBS) if not going(job)]
        return soonest(*(self._job(job) for job in jobs))

    def _job(self, job: Body) -> float | None:
        state = _state(job)
        pods = children(self.store, job)
        if state in OVER:
            for pod in pods:
                if active(pod):
                    delete(self.store, PODS, pod)
            keep = job["spec"].get("ttlSecondsAfterFinished")
            return self._times.expire(self.store, VOLCANO_JOBS, job, keep)
        self._group(job)
        for pod in pods:
            self._notice(job, pod)
        if _state(self._fresh(job)) not in OVER:
            self._fill(job)
            self._judge(job)
        return None

    def _fresh(self, job: Body) -> Body:
        return self.store.get(VOLCANO_JOBS, job["metadata"]["namespace"], job["metadata"]["name"])

    def _group(self, job: Body) -> None:
        meta, spec = job["metadata"], job["spec"]
        name = f"{meta['name']}-{meta['uid']}"
        if self.store.find(VOLCANO_GROUPS, meta["namespace"], name) is None:
            wanted = {"minMember": _least(spec), "queue": spec.get("queue", "default")}
            make(self.store, VOLCANO_GROUPS, job, VOLCANO_JOBS, name, spec=wanted)

    def _fill(self, job: Body) -> None:
        meta = job["metadata"]
        for task in job["spec"]["tasks"]:
            for index in range(task.get("replicas", 1)):
                name = f"{meta['name']}-{task['name']}-{index}"
                if self.store.find(PODS, meta["namespace"], name) is None:
                    self._make(job, task, index, name)

    def _make(self, job: Body, task: Body, index: int, name: str) -> None:
        meta, template = job["metadata"], task["template"]
        marks = {
            f"{GROUP}/job-name": meta["name"],
            f"{GROUP}/task-spec": task["name"],
            f"{GROUP}/task-index": str(index),
        }
        group = {"scheduling.k8s.io/group-name": f"{meta['name']}-{meta['uid']}"}
        spec = {**template["spec"], "schedulerName": job["spec"].get("schedulerName", "volcano")}
        spec.setdefault("restartPolicy", "OnFailure")
        made = {**template, "spec": spec}
        make_pod(
            self.store, job, VOLCANO_JOBS, made, name, labels=marks, annotations={**marks, **group}
        )

    # ── events and policies ───────────────────────────────────────────────────────────────────

    def _notice(self, job: Body, pod: Body) -> None:
        """Act once on the end of a pod."""
        uid = pod["metadata"]["uid"]
        if uid in self.seen:
            return
        if going(pod) and phase(pod) not in ("Succeeded", "Failed"):
            self.seen.add(uid)
            self._act(job, pod, "PodEvicted", None)
        elif phase(pod) == "Failed":
            self.seen.add(uid)
            self._act(job, pod, "PodFailed", exit_code(pod))
        elif phase(pod) == "Succeeded":
            self.seen.add(uid)
            self.succeeded.setdefault(job["metadata"]["uid"], set()).add(uid)
            self._completed(job, pod)

    def _completed(self, job: Body, pod: Body) -> None:
        task = pod["metadata"]["labels"][f"{GROUP}/task-spec"]
        mine = [
            p
            for p in children(self.store, job)
            if p["metadata"]["labels"][f"{GROUP}/task-spec"] == task
        ]
        if all(phase(p) == "Succeeded" for p in mine):
            self._act(job, pod, "TaskCompleted", None)

    def _act(self, job: Body, pod: Body, event: str, code: int | None) -> None:
        task = pod["metadata"]["labels"][f"{GROUP}/task-spec"]
        own = next(t for t in job["spec"]["tasks"] if t["name"] == task).get("policies", [])
        for policy in [*own, *job["spec"].get("policies", [])]:
            if _fits(policy, event, code):
                self._carry_out(job, pod, policy["action"], event)
                return

    def _carry_out(self, job: Body, pod: Body, action: str, why: str) -> None:
        match action:
            case "RestartPod":
                self._retried(job, why)
                delete(self.store, PODS, pod)
            case "RestartTask" | "RestartJob":
                self._retried(job, why)
                for other in children(self.store, job):
                    self.seen.add(other["metadata"]["uid"])
                    delete(self.store, PODS, other)
                self.succeeded.pop(job["metadata"]["uid"], None)
            case "TerminateJob":
                self._set(job, "Terminated", why)
            case "AbortJob":
                self._set(job, "Aborted", why)
            case "CompleteJob":
                self._set(job, "Completed", why)

    def _retried(self, job: Body, why: str) -> None:
        meta = job["metadata"]
        limit = job["spec"].get("maxRetry", MAX_RETRY)

        def edit(body: Body) -> None:
            status = body.setdefault("status", {})
            status["retryCount"] = status.get("retryCount", 0) + 1
            over = status["retryCount"] >= limit
            status["state"] = {"phase": "Failed" if over else "Restarting", "reason": why}

        self.store.change(VOLCANO_JOBS, meta["namespace"], meta["name"], edit)

    def _judge(self, job: Body) -> None:
        """Success by count; else the job runs as soon as enough of its pods do."""
        spec, pods = job["spec"], children(self.store, job)
        done = len(self.succeeded.get(job["metadata"]["uid"], ()))
        total = sum(task.get("replicas", 1) for task in spec["tasks"])
        running = sum(phase(pod) == "Running" and not going(pod) for pod in pods)
        ended = [pod for pod in pods if phase(pod) in ("Succeeded", "Failed")]
        if "minSuccess" in spec and done >= spec["minSuccess"]:
            self._set(job, "Completed", "enough pods have succeeded")
        elif len(ended) == total:
            self._set(job, "Completed" if done >= _least(spec) else "Failed", "all pods have ended")
        elif running + done >= _least(spec):
            self._set(job, "Running", "")
        elif _state(self._fresh(job)) != "Restarting":
            self._set(job, "Pending", "")

    def _set(self, job: Body, state: str, reason: str) -> None:
        meta = job["metadata"]
        pods = children(self.store, job)
        counts = {p.lower(): sum(phase(x) == p for x in pods) for p in PHASES}

        def edit(body: Body) -> None:
            told = {"phase": state, **({"reason": reason} if reason else {})}
            status = body.setdefault("status", {})
            status |= {"state": told, "minAvailable": _least(job["spec"]), **counts}

        self.store.change(VOLCANO_JOBS, meta["namespace"], meta["name"], edit)


PHASES = ("Pending", "Running", "Succeeded", "Failed")


def _state(job: Body) -> str:
    return str(job.get("status", {}).get("state", {}).get("phase", "Pending"))


def _least(spec: Body) -> int:
    total = sum(task.get("replicas", 1) for task in spec["tasks"])
    return int(spec.get("minAvailable", total))


def _fits(policy: Body, event: str, code: Any) -> bool:
    events = {policy.get("event"), *policy.get("events", [])}
    if "exitCode" in policy:
        return bool(code == policy["exitCode"])
    return bool({event, "*"} & events)

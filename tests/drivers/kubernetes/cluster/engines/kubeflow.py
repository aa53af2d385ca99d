"""training-operator v1: PyTorchJob, TFJob, JAXJob, XGBoostJob, PaddleJob.

Pods have fixed names, so a lost one comes back only when the old one is gone. A failed pod under
`ExitCode` is made anew at once from 128 on, without any delay, and fails the job below; under
`Never` it fails the job; `OnFailure` and `Always` are the kubelet's business.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.drivers.kubernetes.cluster import PODS, SERVICES, Kind
from tests.drivers.kubernetes.cluster.conditions import is_true
from tests.drivers.kubernetes.cluster.engines.endings import Times, clean, say, unsay
from tests.drivers.kubernetes.cluster.kinds import KUBEFLOW
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
from tests.drivers.kubernetes.cluster.refusal import Body, copied
from tests.drivers.kubernetes.cluster.store import Store

GROUP = "training.kubeflow.org"
RETRYABLE = 128  # exit statuses from here on
UNKNOWN = 0xBEEF  # of a pod that failed without a container's status


class Words(NamedTuple):
    """What a kind calls things."""

    replicas: str
    container: str
    leader: str  # role whose success is the job's; "" if there is none


WORDS = {
    "pytorchjob": Words("pytorchReplicaSpecs", "pytorch", "Master"),
    "tfjob": Words("tfReplicaSpecs", "tensorflow", "Chief"),
    "jaxjob": Words("jaxReplicaSpecs", "jax", ""),
    "xgboostjob": Words("xgbReplicaSpecs", "xgboost", "Master"),
    "paddlejob": Words("paddleReplicaSpecs", "paddle", "Master"),
}


@dataclass
class TrainingOperator:
    """Acts on all five kinds."""

    store: Store
    pace: Pace
    restarts: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._times = Times(self.pace)

    def step(self) -> float | None:
        """Act; how long until something is due."""
        return soonest(
            *(
                self._job(kind, WORDS[name], job)
                for name, kind in KUBEFLOW.items()
                for job in self.store.all(kind)
                if not going(job)
            )
        )

    def _job(self, kind: Kind, words: Words, job: Body) -> float | None:
        policy = job["spec"].get("runPolicy", {})
        pods = children(self.store, job)
        if is_true(job, "Succeeded") or is_true(job, "Failed"):
            clean(self.store, pods, policy.get("cleanPodPolicy", "None"))
            keep = policy.get("ttlSecondsAfterFinished")
            return self._times.expire(self.store, kind, job, keep)
        say(self.store, kind, job, "Created", f"{kind.kind}Created")
        if policy.get("suspend"):
            self._suspend(kind, job, pods)
            return None
        unsay(self.store, kind, job, "Suspended")
        for role, replicas in job["spec"][words.replicas].items():
            self._role(kind, words, job, role, replicas)
        self._judge(kind, words, job)
        left = self._times.late(job, policy.get("activeDeadlineSeconds"))
        if left is not None and left <= 0:
            say(self.store, kind, job, "Failed", f"{kind.kind}Failed", "past its deadline")
        return left if left is None or left > 0 else 0.0

    def _suspend(self, kind: Kind, job: Body, pods: list[Body]) -> None:
        self._times.began.pop(job["metadata"]["uid"], None)
        for pod in pods:
            delete(self.store, PODS, pod)
        unsay(self.store, kind, job, "Running", "Restarting")
        say(self.store, kind, job, "Suspended", f"{kind.kind}Suspended")

    # ── pods ──────────────────────────────────────────────────────────────────────────────────

    def _role(self, kind: Kind, words: Words, job: Body, role: str, replicas: Body) -> None:
        name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
        for index in range(replicas.get("replicas", 1)):
            called = f"{name}-{role.lower()}-{index}"
            if self.store.find(SERVICES, namespace, called) is None:
                spec: Body = {"clusterIP": "None", "selector": _labels(job, role, index)}
                make(self.store, SERVICES, job, kind, called, spec=spec)
            pod = self.store.find(PODS, namespace, called)
            if pod is None:
                self._make(kind, words, job, role, index)
            elif phase(pod) == "Failed" and not going(pod):
                self._failed(kind, words, job, replicas, pod)
        for pod in children(self.store, job):
            self._surplus(pod, role, replicas.get("replicas", 1))

    def _surplus(self, pod: Body, role: str, count: int) -> None:
        labels = pod["metadata"]["labels"]
        mine = labels[f"{GROUP}/replica-type"] == role.lower()
        if mine and int(labels[f"{GROUP}/replica-index"]) >= count:
            delete(self.store, PODS, pod)

    def _make(self, kind: Kind, words: Words, job: Body, role: str, index: int) -> None:
        replicas = job["spec"][words.replicas][role]
        template = copied(replicas["template"])
        policy = replicas.get("restartPolicy", "Never")
        template["spec"]["restartPolicy"] = "Never" if policy == "ExitCode" else policy
        name = f"{job['metadata']['name']}-{role.lower()}-{index}"
        labels = _labels(job, role, index)
        make_pod(self.store, job, kind, template, name, labels=labels)

    def _failed(self, kind: Kind, words: Words, job: Body, replicas: Body, pod: Body) -> None:
        code = exit_code(pod, words.container)
        again = replicas.get("restartPolicy") == "ExitCode" and (
            (UNKNOWN if code is None else code) >= RETRYABLE
        )
        name = pod["metadata"]["name"]
        if again:
            uid = job["metadata"]["uid"]
            self.restarts[uid] = self.restarts.get(uid, 0) + 1
            delete(self.store, PODS, pod)
            unsay(self.store, kind, job, "Running")
            told = f"{kind.kind} is restarting because {name} failed"
            say(self.store, kind, job, "Restarting", f"{kind.kind}Restarting", told)
        else:
            told = f"{kind.kind} is failed because {name} ended with {code}"
            say(self.store, kind, job, "Failed", f"{kind.kind}Failed", told)

    # ── judgement ─────────────────────────────────────────────────────────────────────────────

    def _judge(self, kind: Kind, words: Words, job: Body) -> None:
        pods = children(self.store, job)
        limit = job["spec"].get("runPolicy", {}).get("backoffLimit")
        if limit is not None and _kubelets(pods) + self._own(job) > limit:
            told = "it has reached its backoff limit"
            say(self.store, kind, job, "Failed", f"{kind.kind}Failed", told)
        elif self._succeeded(words, job, pods):
            unsay(self.store, kind, job, "Running", "Restarting")
            say(self.store, kind, job, "Succeeded", f"{kind.kind}Succeeded")
        elif pods and all(phase(pod) == "Running" and not going(pod) for pod in pods):
            unsay(self.store, kind, job, "Restarting")
            say(self.store, kind, job, "Running", f"{kind.kind}Running")
        self._tell(kind, words, job, pods)

    def _own(self, job: Body) -> int:
        return self.restarts.get(job["metadata"]["uid"], 0)

    def _succeeded(self, words: Words, job: Body, pods: list[Body]) -> bool:
        roles = job["spec"][words.replicas]
        if words.leader in roles:
            return bool(_good(pods, words.leader))
        workers = _good(pods, "Worker")
        if "elasticPolicy" in job["spec"]:
            return bool(workers)
        if words.container == "tensorflow" and job["spec"].get("successPolicy") != "AllWorkers":
            return any(pod["metadata"]["name"].endswith("-worker-0") for pod in workers)
        return len(workers) >= int(roles["Worker"].get("replicas", 1))

    def _tell(self, kind: Kind, words: Words, job: Body, pods: list[Body]) -> None:
        told = {}
        for role in job["spec"][words.replicas]:
            mine = [p for p in pods if _role_of(p) == role.lower()]
            counts = {"active": sum(active(p) for p in mine), "succeeded": len(_good(mine, role))}
            told[role] = {**counts, "failed": sum(phase(p) == "Failed" for p in mine)}
        meta = job["metadata"]

        def edit(body: Body) -> None:
            body.setdefault("status", {})["replicaStatuses"] = told

        self.store.change(kind, meta["namespace"], meta["name"], edit)


def _labels(job: Body, role: str, index: int) -> Body:
    return {
        f"{GROUP}/job-name": job["metadata"]["name"],
        f"{GROUP}/replica-type": role.lower(),
        f"{GROUP}/replica-index": str(index),
    }


def _role_of(pod: Body) -> str:
    return str(pod["metadata"]["labels"][f"{GROUP}/replica-type"])


def _good(pods: list[Body], role: str) -> list[Body]:
    return [p for p in pods if phase(p) == "Succeeded" and _role_of(p) == role.lower()]


def _kubelets(pods: list[Body]) -> int:
    """Restarts of containers in pods that run."""
    return sum(
        told["restartCount"]
        for pod in pods
        if phase(pod) == "Running"
        for told in pod["status"].get("containerStatuses", [])
    )

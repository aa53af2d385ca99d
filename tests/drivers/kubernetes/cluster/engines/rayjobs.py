"""KubeRay: a RayJob makes a RayCluster, and once that is ready a Job that submits the entrypoint.

Ray itself is a process that sleeps. The submitter runs the entrypoint in place of a head that
would, with the head's variables and volumes. A worker that has ended is deleted and made anew,
whatever it has ended with; what becomes of the entrypoint becomes of the RayJob, and the head after
one that is lost gets it again. A RayCluster that was ready once stays so.
"""

from dataclasses import dataclass, field

from holdfast.drivers.kubernetes.cluster import JOBS, PODS
from tests.drivers.kubernetes.cluster.admission import mark_job
from tests.drivers.kubernetes.cluster.conditions import is_true
from tests.drivers.kubernetes.cluster.engines.endings import Times
from tests.drivers.kubernetes.cluster.kinds import RAY_CLUSTERS, RAY_JOBS
from tests.drivers.kubernetes.cluster.loops import soonest
from tests.drivers.kubernetes.cluster.making import (
    children,
    delete,
    exit_code,
    going,
    make,
    make_pod,
    phase,
    suffix,
)
from tests.drivers.kubernetes.cluster.pace import Pace
from tests.drivers.kubernetes.cluster.refusal import Body, copied
from tests.drivers.kubernetes.cluster.store import Store

START = "sleep 1000000"  # what `ray start --block` is here
OVERWRITE = "ray.io/overwrite-container-cmd"


@dataclass
class KubeRay:
    """Acts on all RayJobs and RayClusters."""

    store: Store
    pace: Pace
    heads: dict[str, str] = field(default_factory=dict)  # that had the entrypoint, by RayJob

    def __post_init__(self) -> None:
        self._times = Times(self.pace)

    def step(self) -> float | None:
        """Act; how long until something is due."""
        for cluster in self.store.all(RAY_CLUSTERS):
            if not going(cluster):
                self._cluster(cluster)
        jobs = [job for job in self.store.all(RAY_JOBS) if not going(job)]
        return soonest(*(self._job(job) for job in jobs))

    # ── RayJobs ──

    def _job(self, job: Body) -> float | None:
        spec, state = job["spec"], job.get("status", {}).get("jobDeploymentStatus", "")
        if state in ("Initializing", "Running"):
            late = self._times.late(job, spec.get("activeDeadlineSeconds"))
            if spec.get("suspend"):
                self._say(job, "Suspending")
            elif late is not None and late <= 0:
                self._say(job, "Failed", reason="DeadlineExceeded")
            elif state == "Initializing":
                self._submit(job)
            else:
                self._judge(job)
            return late
        match state:
            case "":
                name = f"{job['metadata']['name']}-{suffix()}"
                self._say(job, "Initializing", rayClusterName=name, jobId=name)
            case "Suspending" | "Retrying":
                self._take_down(job)
            case "Suspended" if not spec.get("suspend"):
                self._say(job, "")
            case "Complete" | "Failed" if spec.get("shutdownAfterJobFinishes"):
                for cluster in children(self.store, job, RAY_CLUSTERS):
                    delete(self.store, RAY_CLUSTERS, cluster)
        return None

    def _submit(self, job: Body) -> None:
        clusters = children(self.store, job, RAY_CLUSTERS)
        if not clusters:
            name, labels = job["status"]["rayClusterName"], job["metadata"].get("labels", {})
            spec = copied(job["spec"]["rayClusterSpec"])
            make(
                self.store, RAY_CLUSTERS, job, RAY_JOBS, name,
                metadata={"labels": labels}, spec=spec,
            )  # fmt: skip
        elif head := self._ready_head(clusters[0]):
            self.heads[job["metadata"]["uid"]] = head["metadata"]["uid"]
            self._make_submitter(job)
            self._say(job, "Running", jobStatus="RUNNING")

    def _ready_head(self, cluster: Body) -> Body | None:
        """The head of a cluster that is ready."""
        heads = [pod for pod in children(self.store, cluster) if _type(pod) == "head"]
        ready = cluster.get("status", {}).get("state") == "ready"
        return heads[0] if ready and heads and phase(heads[0]) == "Running" else None

    def _make_submitter(self, job: Body) -> None:
        """As Ray runs the entrypoint in the head, it has what the head's container has."""
        head = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
        template = copied(job["spec"]["submitterPodTemplate"])
        [container] = template["spec"]["containers"]
        main = head["containers"][0]
        for key in ("env", "envFrom", "volumeMounts", "workingDir"):
            container |= {key: main[key]} if key in main else {}
        container["command"] = ["sh", "-c", f"exec {job['spec']['entrypoint']}"]
        template["spec"] |= {"volumes": head.get("volumes", []), "restartPolicy": "Never"}
        spec = {"backoffLimit": 0, "template": template}
        mark_job(make(self.store, JOBS, job, RAY_JOBS, job["metadata"]["name"], spec=spec))

    def _judge(self, job: Body) -> None:
        """By the end of the entrypoint. A new head does not know of it, and neither who submits nor
        the head have to live as long as it does: it is submitted again."""
        submitters = children(self.store, job, JOBS)
        clusters = children(self.store, job, RAY_CLUSTERS)
        head = self._ready_head(clusters[0]) if clusters else None
        if not submitters:
            if head is not None:
                self.heads[job["metadata"]["uid"]] = head["metadata"]["uid"]
                self._make_submitter(job)
            return
        pods = [pod for pod in children(self.store, submitters[0]) if not going(pod)]
        codes = [code for pod in pods if (code := exit_code(pod)) is not None]
        if 0 in codes:
            self._say(job, "Complete", jobStatus="SUCCEEDED")
        elif codes:
            failed = job["status"].get("failed", 0) + 1
            again = failed <= job["spec"].get("backoffLimit", 0)
            self._say(job, "Retrying" if again else "Failed", jobStatus="FAILED", failed=failed)
        elif is_true(submitters[0], "Failed") or self._is_new(job, head):
            delete(self.store, JOBS, submitters[0])

    def _is_new(self, job: Body, head: Body | None) -> bool:
        """Whether this head has never had the entrypoint."""
        known = self.heads[job["metadata"]["uid"]]
        return head is not None and head["metadata"]["uid"] != known

    def _take_down(self, job: Body) -> None:
        """Cluster and submitter; only then is the RayJob suspended, or tried again."""
        made = [
            (kind, body)
            for kind in (RAY_CLUSTERS, JOBS)
            for body in children(self.store, job, kind)
        ]
        for kind, body in made:
            delete(self.store, kind, body)
        if not made:
            again = job["status"]["jobDeploymentStatus"] == "Retrying"
            self._say(job, "" if again else "Suspended", jobStatus="")

    def _say(self, job: Body, state: str, **status: object) -> None:
        meta = job["metadata"]

        def edit(body: Body) -> None:
            body.setdefault("status", {}).update(jobDeploymentStatus=state, **status)

        self.store.change(RAY_JOBS, meta["namespace"], meta["name"], edit)

    # ── RayClusters ──

    def _cluster(self, cluster: Body) -> None:
        pods = children(self.store, cluster)
        for pod in pods:
            if phase(pod) in ("Succeeded", "Failed"):
                delete(self.store, PODS, pod)
        spec = cluster["spec"]
        groups = {"head": ("headgroup", 1, spec["headGroupSpec"]["template"])}
        for group in spec["workerGroupSpecs"]:
            name = group["groupName"]
            groups[f"{name}-worker"] = (name, group["replicas"], group["template"])
        for prefix, (group, count, template) in groups.items():
            there = [p for p in pods if p["metadata"]["labels"]["ray.io/group"] == group]
            for _ in range(count - len(there)):
                self._pod(cluster, prefix, group, template)
        wanted = sum(count for _, count, _ in groups.values())
        if len(pods) == wanted and all(phase(p) == "Running" and is_true(p, "Ready") for p in pods):
            self._is_ready(cluster)

    def _pod(self, cluster: Body, prefix: str, group: str, template: Body) -> None:
        name = cluster["metadata"]["name"]
        made = copied(template)
        made["spec"].setdefault("restartPolicy", "Always")
        container = made["spec"]["containers"][0]
        if made["metadata"].get("annotations", {}).get(OVERWRITE) != "true":
            container["command"] = ["sh", "-c", f"exec {START}"]
        address = "127.0.0.1" if group == "headgroup" else f"{name}-head-svc"
        said = {"KUBERAY_GEN_RAY_START_CMD": START, "RAY_ADDRESS": f"{address}:6379"}
        container["env"] = [
            *container.get("env", []),
            *({"name": key, "value": value} for key, value in said.items()),
        ]
        labels = {"ray.io/cluster": name, "ray.io/group": group}
        labels["ray.io/node-type"] = "head" if group == "headgroup" else "worker"
        called = f"{name}-{prefix}-{suffix()}"
        make_pod(self.store, cluster, RAY_CLUSTERS, made, called, labels=labels)

    def _is_ready(self, cluster: Body) -> None:
        meta = cluster["metadata"]

        def edit(body: Body) -> None:
            body.setdefault("status", {})["state"] = "ready"

        self.store.change(RAY_CLUSTERS, meta["namespace"], meta["name"], edit)


def _type(pod: Body) -> str:
    return str(pod["metadata"]["labels"].get("ray.io/node-type"))

"""mpi-operator v2: a batch Job as launcher, and workers that are plain pods.

A worker that is missing is made again; one that has failed is not. What becomes of the launcher
becomes of the job.
"""

from dataclasses import dataclass

from holdfast.drivers.kubernetes.cluster import CONFIG_MAPS, JOBS, PODS, SECRETS, SERVICES
from tests.drivers.kubernetes.cluster.admission import mark_job
from tests.drivers.kubernetes.cluster.conditions import is_true
from tests.drivers.kubernetes.cluster.engines.endings import Times, clean, say, unsay
from tests.drivers.kubernetes.cluster.kinds import MPI_JOBS
from tests.drivers.kubernetes.cluster.loops import soonest
from tests.drivers.kubernetes.cluster.making import (
    children,
    delete,
    going,
    make,
    make_pod,
    phase,
)
from tests.drivers.kubernetes.cluster.pace import Pace
from tests.drivers.kubernetes.cluster.refusal import Body
from tests.drivers.kubernetes.cluster.store import Store

GROUP = "training.kubeflow.org"


@dataclass
class MpiOperator:
    """Acts on all MPIJobs."""

    store: Store
    pace: Pace

    def __post_init__(self) -> None:
        self._times = Times(self.pace)

    def step(self) -> float | None:
        """Act; how long until something is due."""
        jobs = [job for job in self.store.all(MPI_JOBS) if not going(job)]
        return soonest(*(self._job(job) for job in jobs))

    def _job(self, job: Body) -> float | None:
        policy = job["spec"].get("runPolicy", {})
        if is_true(job, "Succeeded") or is_true(job, "Failed"):
            clean(self.store, children(self.store, job), policy.get("cleanPodPolicy", "None"))
            keep = policy.get("ttlSecondsAfterFinished")
            return self._times.expire(self.store, MPI_JOBS, job, keep)
        say(self.store, MPI_JOBS, job, "Created", "MPIJobCreated")
        self._belongings(job)
        suspended = bool(policy.get("suspend"))
        if suspended:
            for pod in children(self.store, job):
                delete(self.store, PODS, pod)
            say(self.store, MPI_JOBS, job, "Suspended", "MPIJobSuspended")
        else:
            unsay(self.store, MPI_JOBS, job, "Suspended")
            self._workers(job)
        self._launch(job, suspended=suspended)
        self._judge(job)
        return None

    def _belongings(self, job: Body) -> None:
        """Host file, keys and names."""
        name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
        if self.store.find(CONFIG_MAPS, namespace, f"{name}-config") is None:
            hosts = {"hostfile": "", "discover_hosts.sh": "#!/bin/sh\n"}
            make(self.store, CONFIG_MAPS, job, MPI_JOBS, f"{name}-config", data=hosts)
        if self.store.find(SECRETS, namespace, f"{name}-ssh") is None:
            make(self.store, SECRETS, job, MPI_JOBS, f"{name}-ssh", data={})
        if self.store.find(SERVICES, namespace, name) is None:
            spec = {"clusterIP": "None", "selector": {f"{GROUP}/job-name": name}}
            make(self.store, SERVICES, job, MPI_JOBS, name, spec=spec)

    def _workers(self, job: Body) -> None:
        worker = job["spec"]["mpiReplicaSpecs"].get("Worker", {"replicas": 0})
        name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
        for index in range(worker.get("replicas", 1)):
            called = f"{name}-worker-{index}"
            if self.store.find(PODS, namespace, called) is None:
                template = worker["template"]
                policy = worker.get("restartPolicy", "Never")
                spec = {**template["spec"], "hostname": called, "restartPolicy": policy}
                made = {**template, "spec": spec}
                labels = {
                    f"{GROUP}/job-name": name,
                    f"{GROUP}/job-role": "worker",
                    f"{GROUP}/replica-index": str(index),
                }
                make_pod(self.store, job, MPI_JOBS, made, called, labels=labels)

    def _launch(self, job: Body, *, suspended: bool) -> None:
        name, namespace = f"{job['metadata']['name']}-launcher", job["metadata"]["namespace"]
        found = self.store.find(JOBS, namespace, name)
        if found is not None:

            def edit(body: Body) -> None:
                body["spec"]["suspend"] = suspended

            self.store.change(JOBS, namespace, name, edit)
            return
        waits = job["spec"].get("launcherCreationPolicy") == "WaitForWorkersReady"
        workers = children(self.store, job)
        if waits and not all(is_true(pod, "Ready") for pod in workers):
            return
        launcher, policy = job["spec"]["mpiReplicaSpecs"]["Launcher"], job["spec"]["runPolicy"]
        template = launcher["template"]
        restart = {"restartPolicy": launcher.get("restartPolicy", "Never")}
        spec: Body = {
            "backoffLimit": policy.get("backoffLimit", 6),
            "suspend": suspended,
            "template": {**template, "spec": {**template["spec"], **restart}},
        }
        for key in ("activeDeadlineSeconds", "ttlSecondsAfterFinished"):
            spec |= {key: policy[key]} if key in policy else {}
        mark_job(make(self.store, JOBS, job, MPI_JOBS, name, spec=spec))

    def _judge(self, job: Body) -> None:
        name, namespace = f"{job['metadata']['name']}-launcher", job["metadata"]["namespace"]
        launcher = self.store.find(JOBS, namespace, name)
        pods = children(self.store, job)
        if launcher and is_true(launcher, "Complete"):
            unsay(self.store, MPI_JOBS, job, "Running")
            say(self.store, MPI_JOBS, job, "Succeeded", "MPIJobSucceeded")
        elif launcher and is_true(launcher, "Failed"):
            say(self.store, MPI_JOBS, job, "Failed", "MPIJobFailed", "the launcher has failed")
        elif any(pod["status"].get("reason") == "Evicted" for pod in pods):
            say(self.store, MPI_JOBS, job, "Failed", "MPIJobEvicted", "a worker was evicted")
        elif launcher and pods and all(phase(pod) == "Running" for pod in pods):
            say(self.store, MPI_JOBS, job, "Running", "MPIJobRunning")

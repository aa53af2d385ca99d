"""JobSet 0.12: child Jobs, success, failure, suspension; of its alpha features `ElasticJobSet`."""

from dataclasses import dataclass, field

from holdfast.drivers.kubernetes.cluster import JOBS, SERVICES
from tests.drivers.kubernetes.cluster.admission import mark_job
from tests.drivers.kubernetes.cluster.conditions import is_true, set_condition
from tests.drivers.kubernetes.cluster.engines.endings import Times, say, unsay
from tests.drivers.kubernetes.cluster.engines.jobs import finished
from tests.drivers.kubernetes.cluster.kinds import JOB_SETS
from tests.drivers.kubernetes.cluster.loops import soonest
from tests.drivers.kubernetes.cluster.making import children, delete, going, make
from tests.drivers.kubernetes.cluster.pace import Pace
from tests.drivers.kubernetes.cluster.refusal import Body, copied
from tests.drivers.kubernetes.cluster.store import Store
from tests.drivers.kubernetes.cluster.webhooks import COUNTS, ELASTIC

GROUP = "jobset.sigs.k8s.io"
ATTEMPT = f"{GROUP}/restart-attempt"
OWN = f"{GROUP}/jobset-controller"


@dataclass
class JobSets:
    """Acts on all JobSets."""

    store: Store
    pace: Pace
    gates: set[str]
    restarts: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._times = Times(self.pace)

    def step(self) -> float | None:
        """Act; how long until something is due."""
        sets = [s for s in self.store.all(JOB_SETS) if s["spec"].get("managedBy", OWN) == OWN]
        return soonest(*(self._set(body) for body in sets if not going(body)))

    def _set(self, body: Body) -> float | None:
        spec, jobs = body["spec"], children(self.store, body, JOBS)
        if is_true(body, "Completed") or is_true(body, "Failed"):
            for job in jobs:
                if not finished(job):
                    delete(self.store, JOBS, job)
            keep = spec.get("ttlSecondsAfterFinished")
            return self._times.expire(self.store, JOB_SETS, body, keep)
        self._service(body)
        attempt = str(self.restarts.get(body["metadata"]["uid"], 0))
        current = [j for j in jobs if j["metadata"]["labels"][ATTEMPT] == attempt]
        for job in jobs:
            if job not in current:
                delete(self.store, JOBS, job)
        if not self._ended(body, current):
            if ELASTIC in self.gates:
                self._resize(body, current)
            self._fill(body, jobs, attempt)
            self._suspend(body, current)
        self._tell(body, current)
        return None

    def _service(self, body: Body) -> None:
        network, namespace = body["spec"].get("network", {}), body["metadata"]["namespace"]
        name = network.get("subdomain") or body["metadata"]["name"]
        if network.get("enableDNSHostnames", True) and not self.store.find(
            SERVICES, namespace, name
        ):
            spec = {
                "clusterIP": "None",
                "publishNotReadyAddresses": network.get("publishNotReadyAddresses", True),
                "selector": {f"{GROUP}/jobset-name": body["metadata"]["name"]},
            }
            make(self.store, SERVICES, body, JOB_SETS, name, spec=spec)

    def _named(self, namespace: str, name: str) -> bool:
        return self.store.find(SERVICES, namespace, name) is not None

    def _resize(self, body: Body, jobs: list[Body]) -> None:
        """Its Jobs become as large as it says, whoever has changed them."""
        sizes = {job["name"]: job["template"]["spec"] for job in body["spec"]["replicatedJobs"]}
        for job in jobs:
            counts = {key: sizes[_role(job)][key] for key in COUNTS}
            meta = job["metadata"]

            def edit(new: Body, counts: Body = counts) -> None:
                new["spec"] |= counts

            if not finished(job):
                self.store.change(JOBS, meta["namespace"], meta["name"], edit)

    def _fill(self, body: Body, jobs: list[Body], attempt: str) -> None:
        there = {job["metadata"]["name"] for job in jobs}
        for replicated in body["spec"]["replicatedJobs"]:
            for index in range(replicated.get("replicas", 1)):
                name = f"{body['metadata']['name']}-{replicated['name']}-{index}"
                if name not in there:
                    self._make(body, replicated, index, name, attempt)

    def _make(self, body: Body, replicated: Body, index: int, name: str, attempt: str) -> None:
        labels = {
            f"{GROUP}/jobset-name": body["metadata"]["name"],
            f"{GROUP}/jobset-uid": body["metadata"]["uid"],
            f"{GROUP}/replicatedjob-name": replicated["name"],
            f"{GROUP}/job-index": str(index),
            ATTEMPT: attempt,
        }
        template = copied(replicated["template"])
        spec = template["spec"]
        spec.setdefault("completionMode", "Indexed")
        pods = spec["template"]
        pods["spec"].setdefault("restartPolicy", "OnFailure")
        subdomain = body["spec"].get("network", {}).get("subdomain") or body["metadata"]["name"]
        pods["spec"].setdefault("subdomain", subdomain)
        for meta in (template.setdefault("metadata", {}), pods.setdefault("metadata", {})):
            meta["labels"] = {**meta.get("labels", {}), **labels}
        spec["suspend"] = bool(body["spec"].get("suspend"))
        made = make(
            self.store, JOBS, body, JOB_SETS, name, metadata=template["metadata"], spec=spec
        )
        mark_job(made)

    def _suspend(self, body: Body, jobs: list[Body]) -> None:
        wanted = bool(body["spec"].get("suspend"))
        for job in jobs:
            meta = job["metadata"]

            def edit(new: Body) -> None:
                new["spec"]["suspend"] = wanted

            if not finished(job):
                self.store.change(JOBS, meta["namespace"], meta["name"], edit)
        if wanted:
            say(self.store, JOB_SETS, body, "Suspended", "SuspendedJobs", "jobset is suspended")
        else:
            unsay(self.store, JOB_SETS, body, "Suspended")

    def _ended(self, body: Body, jobs: list[Body]) -> bool:
        """Whether the set has succeeded or failed now, or starts anew."""
        failed = [job for job in jobs if is_true(job, "Failed")]
        if failed:
            return self._failed(body, failed[0])
        policy = body["spec"].get("successPolicy", {})
        targets = policy.get("targetReplicatedJobs") or [
            r["name"] for r in body["spec"]["replicatedJobs"]
        ]
        counted = [
            j for j in jobs if j["metadata"]["labels"][f"{GROUP}/replicatedjob-name"] in targets
        ]
        replicas = sum(
            r.get("replicas", 1) for r in body["spec"]["replicatedJobs"] if r["name"] in targets
        )
        done = sum(is_true(job, "Complete") for job in counted)
        needed = 1 if policy.get("operator", "All") == "Any" else replicas
        if done < needed:
            return False
        message = "jobset completed successfully"
        say(self.store, JOB_SETS, body, "Completed", "AllJobsCompleted", message)
        self._state(body, "Completed")
        return True

    def _failed(self, body: Body, job: Body) -> bool:
        uid, policy = body["metadata"]["uid"], body["spec"].get("failurePolicy", {})
        reason = next(c["reason"] for c in job["status"]["conditions"] if c["type"] == "Failed")
        action = next(
            (
                rule["action"]
                for rule in policy.get("rules", [])
                if reason in rule.get("onJobFailureReasons", [reason])
            ),
            "RestartJobSet",
        )
        ignored = action.endswith("IgnoreMaxRestarts")
        allowed = ignored or self.restarts.get(uid, 0) < policy.get("maxRestarts", 0)
        if action == "FailJobSet" or not allowed:
            name = "ReachedMaxRestarts" if policy.get("maxRestarts") else "FailedJobs"
            told = (
                f"jobset failed due to one or more job failures (first: {job['metadata']['name']})"
            )
            say(self.store, JOB_SETS, body, "Failed", name, told)
            self._state(body, "Failed")
        else:
            self.restarts[uid] = self.restarts.get(uid, 0) + 1
        return True

    def _state(self, body: Body, state: str) -> None:
        def edit(new: Body) -> None:
            new["status"]["terminalState"] = state

        self.store.change(JOB_SETS, body["metadata"]["namespace"], body["metadata"]["name"], edit)

    def _tell(self, body: Body, jobs: list[Body]) -> None:
        told = []
        for replicated in body["spec"]["replicatedJobs"]:
            mine = [job for job in jobs if _role(job) == replicated["name"]]
            active = sum(j.get("status", {}).get("active", 0) > 0 for j in mine)
            done = {n: sum(is_true(j, t) for j in mine) for n, t in ENDS.items()}
            others = {"ready": active, "suspended": 0}
            told.append({"name": replicated["name"], "active": active, **others, **done})

        def edit(new: Body) -> None:
            status = new.setdefault("status", {})
            status["replicatedJobsStatus"] = told
            status["restarts"] = self.restarts.get(body["metadata"]["uid"], 0)
            set_condition(new, "StartupPolicyInProgress", "False")

        self.store.change(JOB_SETS, body["metadata"]["namespace"], body["metadata"]["name"], edit)


def _role(job: Body) -> str:
    return str(job["metadata"]["labels"][f"{GROUP}/replicatedjob-name"])


ENDS = {"succeeded": "Complete", "failed": "Failed", "suspended": "Suspended"}

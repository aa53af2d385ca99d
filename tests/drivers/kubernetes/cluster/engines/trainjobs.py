"""Kubeflow Trainer 2.3: a TrainJob and its runtime become a JobSet, whose end is the job's."""

from dataclasses import dataclass

from tests.drivers.kubernetes.cluster.conditions import is_true
from tests.drivers.kubernetes.cluster.engines.endings import say, unsay
from tests.drivers.kubernetes.cluster.engines.runtimes import runtime
from tests.drivers.kubernetes.cluster.kinds import JOB_SETS, TRAIN_JOBS
from tests.drivers.kubernetes.cluster.making import going, make
from tests.drivers.kubernetes.cluster.refusal import Body, copied
from tests.drivers.kubernetes.cluster.store import Store

NODE = "node"
STEP = "trainer.kubeflow.org/trainjob-ancestor-step"
ENDS = {"Completed": ("Complete", "JobsCompleted"), "Failed": ("Failed", "JobsFailed")}


@dataclass
class Trainer:
    """Acts on all TrainJobs."""

    store: Store

    def step(self) -> None:
        """Act."""
        for job in self.store.all(TRAIN_JOBS):
            if not (going(job) or is_true(job, "Complete") or is_true(job, "Failed")):
                self._job(job)

    def _job(self, job: Body) -> None:
        meta, wanted = job["metadata"], bool(job["spec"].get("suspend"))
        found = self.store.find(JOB_SETS, meta["namespace"], meta["name"])
        if found is None:
            found = self._make(job)

        def edit(body: Body) -> None:
            body["spec"]["suspend"] = wanted

        self.store.change(JOB_SETS, meta["namespace"], meta["name"], edit)
        if wanted:
            say(self.store, TRAIN_JOBS, job, "Suspended", "Suspended", "TrainJob is suspended")
        else:
            unsay(self.store, TRAIN_JOBS, job, "Suspended")
        for told, (type_, reason) in ENDS.items():
            if is_true(found, told):
                say(self.store, TRAIN_JOBS, job, type_, reason)

    def _make(self, job: Body) -> Body:
        spec = copied(runtime(self.store, job)["spec"])
        trainer, template = job["spec"].get("trainer", {}), spec["template"]
        nodes = trainer.get("numNodes") or spec.get("mlPolicy", {}).get("numNodes", 1)
        for replicated in template["spec"]["replicatedJobs"]:
            labels = replicated["template"].get("metadata", {}).get("labels", {})
            if replicated["name"] == NODE or labels.get(STEP) == "trainer":
                inner = replicated["template"]["spec"]
                inner |= {"completions": nodes, "parallelism": nodes, "completionMode": "Indexed"}
                for container in inner["template"]["spec"]["containers"]:
                    if container["name"] == NODE:
                        _override(container, trainer)
        meta = template.get("metadata", {})
        limit = job["spec"].get("activeDeadlineSeconds")
        for replicated in template["spec"]["replicatedJobs"] if limit else []:
            replicated["template"]["spec"].setdefault("activeDeadlineSeconds", limit)
        template["spec"]["suspend"] = bool(job["spec"].get("suspend"))
        name = job["metadata"]["name"]
        return make(
            self.store, JOB_SETS, job, TRAIN_JOBS, name, metadata=meta, spec=template["spec"]
        )


def _override(container: Body, trainer: Body) -> None:
    """What a TrainJob says itself counts more than its runtime."""
    for key in ("image", "command", "args"):
        container |= {key: trainer[key]} if trainer.get(key) else {}
    if trainer.get("resourcesPerNode"):
        container["resources"] = trainer["resourcesPerNode"]
    known = {entry["name"]: entry for entry in container.get("env", [])}
    known |= {entry["name"]: entry for entry in trainer.get("env", [])}
    if known:
        container["env"] = list(known.values())

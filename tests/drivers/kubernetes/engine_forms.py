"""The wrong and the right form of every trap of the engines, gangs and queues; see forms.py."""

from tests.drivers.kubernetes.forms import (
    AGENT,
    GPUS,
    Form,
    files,
    indexed,
    job,
    joined,
    kind,
    pod,
    template,
)

PYTORCH = "containers: [{name: pytorch, image: i, command: [@]}]"


def role(name: str = "Worker", rest: str = "replicas: 2", pods: str = "") -> str:
    """A role of one of Kubeflow's jobs; its template has no restart policy, as it should."""
    return (
        f"{name}: {{{joined(rest, template(pods or 'containers: [{name: pytorch}]', policy=''))}}}"
    )


def pytorchjob(*roles: str, spec: str = "", metadata: str = "") -> str:
    """A PyTorchJob of these roles."""
    inner = f"pytorchReplicaSpecs: {{{joined(*roles) or role()}}}"
    return kind("kubeflow.org/v1", "PyTorchJob", joined(spec, inner), metadata)


def runs(*words: str) -> str:
    """The container of a PyTorchJob, with its command."""
    return f"containers: [{{name: pytorch, command: [{', '.join(words)}]}}]"


SPREAD = "restartPolicy: ExitCode, replicas: 2"
KUBEFLOW = {
    "kubeflow-container-name": Form(
        pytorchjob(role(pods="containers: [{name: @@}]")), "main", "pytorch"
    ),
    "kubeflow-template-restart-policy": Form(
        pytorchjob(role(pods="@@containers: [{name: pytorch}]")), "restartPolicy: Never, ", ""
    ),
    "kubeflow-restart-policy-unknown": Form(
        pytorchjob(role(rest="restartPolicy: @@")), "Sometimes", "ExitCode"
    ),
    "kubeflow-never": Form(pytorchjob(role(rest="restartPolicy: @@")), "Never", "ExitCode"),
    "kubeflow-restarts-in-place": Form(
        pytorchjob(role(rest="restartPolicy: @@, replicas: 2")), "OnFailure", "ExitCode"
    ),
    "kubeflow-backoff-limit": Form(
        pytorchjob(role(rest=SPREAD), spec="runPolicy: {@@}"), "backoffLimit: 0", ""
    ),
    "kubeflow-first-exit-ends-all": Form(
        pytorchjob(spec="@@"), "elasticPolicy: {}", "nprocPerNode: '8'"
    ),
    "kubeflow-elastic-with-master": Form(
        pytorchjob(role("@@", "replicas: 1"), spec="elasticPolicy: {}"), "Master", "Worker"
    ),
    "kubeflow-elastic-range": Form(
        pytorchjob(spec="elasticPolicy: {minReplicas: @@, maxReplicas: 4}"), "3", "2"
    ),
    "kubeflow-elastic-never-grows": Form(
        pytorchjob(spec="elasticPolicy: {maxReplicas: 4@@}"), "", ", metrics: [{type: Resource}]"
    ),
    "kubeflow-no-ranks": Form(pytorchjob(role(pods=runs("@@", "train.py"))), "python", "torchrun"),
    "kubeflow-world-size": Form(
        pytorchjob(role("Master", "replicas: 1"), spec="nprocPerNode: @@"), "auto", "'8'"
    ),
    "kubeflow-rank-from-two-sources": Form(
        pytorchjob(role(pods="containers: [{name: pytorch, env: [{name: @@, value: x}]}]")),
        "WORLD_SIZE",
        "LANES",
    ),
    "kubeflow-roles": Form(pytorchjob(role("@@")), "Chief", "Worker"),
    "tfjob-one-worker-ends-all": Form(
        kind(
            "kubeflow.org/v1",
            "TFJob",
            f"successPolicy: @@, tfReplicaSpecs: {{{role()}}}",
        ),
        "''",
        "AllWorkers",
    ),
    "kubeflow-keeps-pods": Form(
        pytorchjob(
            role(pods=GPUS.replace("main", "pytorch")), spec="runPolicy: {cleanPodPolicy: @@}"
        ),
        "None",
        "Running",
    ),
    "kubeflow-not-queued": Form(
        pytorchjob(metadata="labels: {@@: lq}"), "kueue.x-k8s.io/queue-name", "team"
    ),
    "kubeflow-gang-too-small": Form(
        pytorchjob(spec="runPolicy: {schedulingPolicy: {minAvailable: @@}}"), "3", "2"
    ),
    "managed-kubeflow-restarts": Form(
        pytorchjob(role(rest="restartPolicy: @@", pods=runs("holdfast", "agent"))),
        "OnFailure",
        "ExitCode",
    ),
    "managed-kubeflow-shape": Form(
        pytorchjob(role("@@", "replicas: 1", pods=runs("holdfast", "agent"))), "Master", "Worker"
    ),
}


def mpijob(
    spec: str = "", launcher: str = "", worker: str = "", api: str = "kubeflow.org/v2beta1"
) -> str:
    """An MPIJob of one launcher and two workers."""
    first = launcher or "Launcher: {replicas: 1}"
    roles = f"mpiReplicaSpecs: {{{joined(first, f'Worker: {{replicas: 2, {worker}}}')}}}"
    return kind(api, "MPIJob", joined(spec, roles))


def mpirun(ranks: str) -> str:
    """A launcher of so many ranks."""
    line = f"containers: [{{name: l, command: [mpirun, -np, '{ranks}', train]}}]"
    return f"Launcher: {{replicas: 1, {template(line)}}}"


MPI = {
    "mpijob-two-versions": Form(files(mpijob(), mpijob(api="kubeflow.org/@@")), "v1", "v2beta1"),
    "mpijob-other-version": Form(mpijob("@@: x"), "mainContainer", "sshAuthMountPath"),
    "mpijob-launcher": Form(mpijob(launcher="Launcher: {replicas: @@}"), "2", "1"),
    "mpijob-worker-lost-for-good": Form(mpijob(worker="restartPolicy: @@"), "Never", "OnFailure"),
    "mpijob-launcher-too-early": Form(
        mpijob("launcherCreationPolicy: @@"), "AtStartup", "WaitForWorkersReady"
    ),
    "mpijob-too-many-ranks": Form(mpijob("slotsPerWorker: 8", mpirun("@@")), "17", "16"),
    "mpijob-idle-slots": Form(mpijob("slotsPerWorker: 8", mpirun("@@")), "8", "16"),
    "mpijob-launcher-takes-gpus": Form(
        mpijob("runLauncherAsWorker: @@", f"Launcher: {{{template(GPUS)}}}"), "false", "true"
    ),
    "mpijob-gang-without-launcher": Form(
        mpijob("runPolicy: {schedulingPolicy: {minAvailable: @@}}"), "2", "3"
    ),
}

TRAINER_API = "trainer.kubeflow.org/v1alpha1"
LABEL = "metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: @@}}"


def trainjob(spec: str = "", reference: str = "r", name: str = "a") -> str:
    """A TrainJob."""
    runtime = f"runtimeRef: {{kind: TrainingRuntime, name: {reference}}}"
    return kind(TRAINER_API, "TrainJob", joined(runtime, spec), name=name)


def runtime(
    spec: str = "mlPolicy: {numNodes: 4}",
    inner: str = "failurePolicy: {maxRestarts: 0}",
    jobs: str = "backoffLimit: 0",
    pods: str = "",
    node: str = "",
) -> str:
    """A TrainingRuntime of one replicated Job."""
    nodes = joined("name: node", node, f"template: {{spec: {{{joined(jobs, template(pods))}}}}}")
    sets = f"template: {{spec: {{{joined(inner, f'replicatedJobs: [{{{nodes}}}]')}}}}}"
    return kind(TRAINER_API, "TrainingRuntime", joined(spec, sets), name="r")


PATCH = (
    "runtimePatches: [{trainingRuntimeSpec: {template: {spec: {replicatedJobs: [{name: node, "
    "template: {spec: {template: {spec: {containers: [{name: @@, env: [{name: A}]}]}}}}}]}}}}]"
)
TRAINER = {
    "trainjob-pet-variables": Form(
        trainjob("trainer: {env: [{name: @@NNODES, value: '2'}]}"), "PET_", "MY_"
    ),
    "trainjob-patched-env": Form(trainjob(PATCH), "node", "extra"),
    "trainjob-removed-field": Form(trainjob("@@: []"), "podTemplateOverrides", "runtimePatches"),
    "trainjob-name": Form(trainjob(name="@@"), "4ever", "ever"),
    "trainjob-before-runtime": Form(files("@@", runtime(), trainjob(name="z")), trainjob(), ""),
    "trainjob-runtime-unknown": Form(files(runtime(), trainjob(reference="@@")), "s", "r"),
    "trainjob-managed-by": Form(
        trainjob("managedBy: @@"), "me", "trainer.kubeflow.org/trainjob-controller"
    ),
    "trainingruntime-gang-with-spares": Form(
        runtime(
            "mlPolicy: {numNodes: 4}, podGroupPolicy: {coscheduling: {}}",
            jobs="successPolicy: {rules: [{succeededCount: @@}]}",
        ),
        "3",
        "4",
    ),
    "trainingruntime-success-count": Form(
        runtime(jobs="successPolicy: {rules: [{succeededCount: @@}]}"), "5", "4"
    ),
    "trainingruntime-retries-by-default": Form(
        runtime(inner="@@"), "suspend: false", "failurePolicy: {maxRestarts: 3}"
    ),
    "trainingruntime-without-step": Form(
        runtime(jobs="backoffLimit: 0").replace(
            "template: {spec: {backoffLimit", f"template: {{{LABEL}, spec: {{backoffLimit"
        ),
        "dataset",
        "trainer",
    ),
    "managed-trainingruntime": Form(
        runtime("mlPolicy: {numNodes: 4@@}", pods=AGENT), ", torch: {}", ""
    ),
    "trainingruntime-node-replicas": Form(runtime(node="replicas: @@"), "4", "1"),
}


def jobset(
    spec: str = "", child: str = "backoffLimit: 0", pods: str = "", name: str = "a", more: str = ""
) -> str:
    """A JobSet of one replicated Job called node, and of what `more` says."""
    node = f"{{name: node, template: {{spec: {{{joined(child, template(pods))}}}}}}}"
    sets = f"replicatedJobs: [{joined(node, more)}]"
    return kind("jobset.x-k8s.io/v1alpha2", "JobSet", joined(spec, sets), name=name)


SPARE = f"{{name: spare, template: {{spec: {{backoffLimit: 0, {template()}}}}}}}"
JOBSET = {
    "jobset-backoff-limit": Form(jobset(child="@@: 2"), "parallelism", "backoffLimit"),
    "jobset-restart-policy": Form(
        jobset().replace("restartPolicy: Never", "restartPolicy: @@"), "OnFailure", "Never"
    ),
    "jobset-no-failure-policy": Form(
        jobset("@@"), "suspend: false", "failurePolicy: {maxRestarts: 3}"
    ),
    "jobset-negative-priority": Form(
        files(
            "{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: p}, "
            "value: @@}",
            jobset(pods="priorityClassName: p"),
        ),
        "-10",
        "0",
    ),
    "jobset-alpha": Form(
        jobset("failurePolicy: {rules: [{action: @@}]}"), "RestartJob", "RestartJobSet"
    ),
    "jobset-name-too-long": Form(jobset(name="@@"), "a" * 49, "a" * 48),
    "jobset-names-too-late": Form(
        jobset("network: {publishNotReadyAddresses: @@}"), "false", "true"
    ),
    "jobset-waits-for-spares": Form(
        jobset("successPolicy: {operator: All, targetReplicatedJobs: [@@]}", more=SPARE),
        "",
        "node",
    ),
    "jobset-first-ends-all": Form(
        jobset("successPolicy: {operator: @@}", more=SPARE), "Any", "All"
    ),
    "jobset-unknown-job": Form(jobset("coordinator: {replicatedJob: @@}"), "leader", "node"),
    "jobset-startup-policy": Form(jobset("@@: {}"), "startupPolicy", "network"),
    "managed-jobset-restarts": Form(
        jobset("failurePolicy: {maxRestarts: @@}", pods=AGENT), "3", "0"
    ),
}


def volcano(spec: str = "", task: str = "", pods: str = "", policy: str = "Never") -> str:
    """A Volcano Job of one task with two pods."""
    tasks = f"tasks: [{{{joined('name: node, replicas: 2', task, template(pods, policy=policy))}}}]"
    return kind("batch.volcano.sh/v1alpha1", "Job", joined(spec, tasks))


BOTH = "{event: PodEvicted, action: RestartJob}, {event: @@, action: RestartJob}"
VOLCANO = {
    "volcano-max-retry": Form(
        volcano("maxRetry: @@, policies: [{event: PodFailed, action: RestartPod}]"),
        "3",
        "2147483647",
    ),
    "volcano-no-policies": Form(volcano(f"policies: [{BOTH}]"), "PodPending", "PodFailed"),
    "volcano-policy-impossible": Form(
        volcano("policies: [{exitCode: 113, @@action: TerminateJob}]"), "event: PodFailed, ", ""
    ),
    "volcano-too-few-pods": Form(volcano("minSuccess: @@"), "3", "2"),
    "volcano-waits-for-spares": Form(volcano("minAvailable: 1@@"), "", ", minSuccess: 1"),
    "volcano-restart-policy": Form(volcano(policy="@@"), "Always", "Never"),
    "volcano-names-too-late": Form(
        volcano("plugins: {svc: [@@]}", pods="containers: [{name: m, readinessProbe: {}}]"),
        "",
        "--publish-not-ready-addresses",
    ),
    "managed-volcano": Form(
        volcano(
            "minSuccess: 1, maxRetry: 999, policies: [{event: PodFailed, action: @@}]", pods=AGENT
        ),
        "RestartJob",
        "RestartPod",
    ),
}

GROUP = "scheduling.k8s.io/group-name: g"


def group(api: str, spec: str) -> str:
    """A PodGroup, of whichever project."""
    return kind(api, "PodGroup", spec, name="g")


def workload(api: str = "v1beta1", template_name: str = "node") -> str:
    """A native Workload."""
    spec = f"podGroupTemplates: [{{name: {template_name}}}]"
    return kind(f"scheduling.k8s.io/{api}", "Workload", spec, name="w")


VOLCANO_GROUP = "scheduling.volcano.sh/v1beta1"
NATIVE_GROUP = "scheduling.k8s.io/v1beta1"
MEMBER = pod("schedulerName: volcano", annotations=GROUP)
NATIVE_MEMBER = pod("schedulingGroup: {podGroupName: g}")
GANGS = {
    "gang-never-complete": Form(files(group(VOLCANO_GROUP, "minMember: @@"), MEMBER), "2", "1"),
    "gang-group-unknown": Form(
        files(
            group(NATIVE_GROUP, "schedulingPolicy: {}"), pod("schedulingGroup: {podGroupName: @@}")
        ),
        "h",
        "g",
    ),
    "gang-without-scheduler": Form(
        pod("schedulerName: @@", annotations=GROUP), "default-scheduler", "volcano"
    ),
    "gang-mixed-priorities": Form(
        files(
            group(VOLCANO_GROUP, "minMember: 2"),
            pod("priorityClassName: high", annotations=GROUP),
            pod("priorityClassName: @@", annotations=GROUP, name="b"),
        ),
        "low",
        "high",
    ),
    "gang-priority-ignored": Form(
        files(
            group(NATIVE_GROUP, "priorityClassName: @@"),
            pod("schedulingGroup: {podGroupName: g}, priorityClassName: high"),
        ),
        "low",
        "high",
    ),
    "gang-resources-of-all": Form(
        files(
            group(VOLCANO_GROUP, "minMember: 1, minResources: {nvidia.com/gpu: @@}"),
            pod(GPUS, annotations=GROUP),
            pod(GPUS, annotations=GROUP, name="b"),
        ),
        "16",
        "8",
    ),
    "native-gang-version": Form(
        files(workload("@@"), group(NATIVE_GROUP, "workloadRef: {workloadName: w}")),
        "v1alpha2",
        "v1beta1",
    ),
    "native-gang-field": Form(files(workload(), pod("@@: {}")), "workloadRef", "schedulingGroup"),
    "native-gang-order": Form(files("@@", group(NATIVE_GROUP, "priority: 1")), NATIVE_MEMBER, ""),
    "native-gang-template": Form(
        files(workload(), group(NATIVE_GROUP, "workloadRef: {workloadName: w, templateName: @@}")),
        "spare",
        "node",
    ),
    "gang-cannot-be-asked-to-leave": Form(
        files(
            pod("@@"),
            kind("lifecycle.k8s.io/v1alpha1", "EvictionRequest", "target: {pod: {name: a}}"),
        ),
        "schedulingGroup: {podGroupName: g}",
        "hostname: a",
    ),
}

KUEUE = "kueue.x-k8s.io"
PARTIAL = f"{KUEUE}/job-min-parallelism: '1'"
EQUAL = f"{KUEUE}/job-completions-equal-parallelism: 'true'"
TOPOLOGY = f"{KUEUE}/podset-preferred-topology: rack"
ADMISSION = {
    "kueue-partial-kind": Form(
        kind("@@", "Job", template(), f"annotations: {{{PARTIAL}}}"),
        "batch.volcano.sh/v1alpha1",
        "batch/v1",
    ),
    "kueue-partial-size": Form(
        job(metadata=f"annotations: {{{KUEUE}/job-min-parallelism: @@}}"), "'2'", "'1'"
    ),
    "kueue-partial-completions": Form(
        indexed(metadata=f"annotations: {{{PARTIAL}@@}}"), "", f", {EQUAL}"
    ),
    "kueue-partial-with-gang": Form(
        job(pods="@@", metadata=f"annotations: {{{PARTIAL}}}"),
        "schedulingGroup: {podGroupName: g}",
        "hostname: a",
    ),
    "kueue-elastic": Form(
        job(metadata=f"annotations: {{{KUEUE}/elastic-job: 'true'@@}}"), f", {PARTIAL}", ""
    ),
    "kueue-topology-twice": Form(
        pod("", annotations=f"{TOPOLOGY}@@"), f", {KUEUE}/podset-required-topology: rack", ""
    ),
    "kueue-topology-place": Form(job(metadata="annotations: {@@}"), TOPOLOGY, PARTIAL),
    "kueue-fights-placement": Form(
        pod("nodeSelector: {@@}", annotations=TOPOLOGY), "kubernetes.io/hostname: n7", "pool: h200"
    ),
    "kueue-group-count": Form(
        pod(
            "",
            labels=f"{KUEUE}/pod-group-name: g",
            annotations=f"{KUEUE}/pod-group-total-count: '@@'",
        ),
        "2",
        "1",
    ),
    "kueue-group-differs": Form(
        pod("", labels=f"{KUEUE}/pod-group-name: g@@"), "", f", {KUEUE}/queue-name: lq"
    ),
    "kueue-max-time": Form(
        job(metadata=f"labels: {{{KUEUE}/max-exec-time-seconds: '@@'}}"), "1d", "86400"
    ),
    "kueue-old-version": Form(
        kind(f"{KUEUE}/@@", "LocalQueue", "clusterQueue: c"), "v1beta1", "v1beta2"
    ),
    "kueue-quota-uncovered": Form(
        kind(
            f"{KUEUE}/v1beta2",
            "ClusterQueue",
            "resourceGroups: [{coveredResources: [cpu], "
            "flavors: [{name: f, resources: [{name: @@}]}]}]",
        ),
        "memory",
        "cpu",
    ),
}

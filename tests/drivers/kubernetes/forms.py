"""The wrong and the right form of every trap that `holdfast lint` knows.

Each entry is a manifest with one gap (`@@`), what makes it wrong, and what makes it right. They
stand by the module whose checks they are for.
"""

from typing import NamedTuple


class Form(NamedTuple):
    """A manifest with a gap, and what to put there."""

    text: str
    wrong: str
    right: str


def pod(spec: str = "@@", labels: str = "app: a", annotations: str = "", name: str = "a") -> str:
    """A bare pod with a container that `spec` may replace."""
    rest = "" if "containers:" in spec else "containers: [{name: main, image: i}]"
    return (
        f"{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, labels: {{{labels}}}, "
        f"annotations: {{{annotations}}}}}, spec: {{restartPolicy: Never, {joined(spec, rest)}}}}}"
    )


def joined(*texts: str) -> str:
    """Parts of a mapping."""
    return ", ".join(text for text in texts if text)


def main(rest: str, spec: str = "") -> str:
    """A bare pod whose container has these keys."""
    return pod(joined(spec, f"containers: [{{name: main, image: i, {rest}}}]"))


def template(spec: str = "", labels: str = "app: a", policy: str = "Never") -> str:
    """A pod template."""
    rest = "" if "containers:" in spec else "containers: [{name: main, image: i}]"
    said = f"restartPolicy: {policy}" if policy else ""
    return f"template: {{metadata: {{labels: {{{labels}}}}}, spec: {{{joined(said, spec, rest)}}}}}"


AGENT = "containers: [{name: main, image: i, command: [holdfast, agent]}]"
TORCHRUN = "containers: [{name: main, image: i, command: [torchrun, train.py]}]"
GPUS = "containers: [{name: main, image: i, resources: {limits: {nvidia.com/gpu: 8}}}]"


def kind(api: str, what: str, spec: str, metadata: str = "", name: str = "a") -> str:
    """An object of any kind."""
    meta = joined(f"name: {name}", metadata)
    return f"{{apiVersion: {api}, kind: {what}, metadata: {{{meta}}}, spec: {{{spec}}}}}"


def job(spec: str = "", pods: str = "", metadata: str = "", name: str = "a") -> str:
    """A batch Job of two pods, or of what `spec` says."""
    size = "" if "parallelism" in spec else "parallelism: 2, completions: 2"
    inner = "" if "template:" in spec else template(pods)
    return kind("batch/v1", "Job", joined(size, spec, inner), metadata, name)


def indexed(spec: str = "", pods: str = "", metadata: str = "", name: str = "a") -> str:
    """An Indexed Job."""
    return job(joined("completionMode: Indexed", spec), pods, metadata, name)


def cronjob(spec: str = "@@", inside: str = "", pods: str = "", name: str = "a") -> str:
    """A CronJob."""
    jobs = f"jobTemplate: {{spec: {{{joined(inside, template(pods))}}}}}"
    return kind("batch/v1", "CronJob", joined("schedule: '@daily'", spec, jobs), name=name)


RESOURCES = {
    "gpu-limit-differs": Form(
        main("resources: {limits: {@@}, requests: {nvidia.com/gpu: 8, cpu: 1}}"),
        "cpu: 2",
        "nvidia.com/gpu: 8",
    ),
    "gpu-fraction": Form(main("resources: {limits: {nvidia.com/gpu: @@}}"), "'0.5'", "'1'"),
    "hugepages-alone": Form(
        main("resources: {limits: {hugepages-2Mi: 2Gi@@}}"), "", ", memory: 4Gi"
    ),
    "shm-missing": Form(
        pod(
            "volumes: [{name: s, emptyDir: {@@}}], containers: [{name: main, image: i, "
            "volumeMounts: [{name: s, mountPath: /dev/shm}], "
            "resources: {limits: {nvidia.com/gpu: 8}}}]"
        ),
        "",
        "medium: Memory",
    ),
    "shm-over-memory": Form(
        main(
            "resources: {limits: {memory: 8Gi}}",
            "volumes: [{name: s, emptyDir: {medium: Memory, sizeLimit: @@}}]",
        ),
        "8Gi",
        "2Gi",
    ),
    "shm-unlimited": Form(
        pod("volumes: [{name: s, emptyDir: {medium: Memory@@}}]"), "", ", sizeLimit: 2Gi"
    ),
    "mount-without-volume": Form(
        main("volumeMounts: [{name: @@, mountPath: /d}]", "volumes: [{name: d}]"), "data", "d"
    ),
    "mount-path-twice": Form(
        main(
            "volumeMounts: [{name: d, mountPath: /d}, {name: d, mountPath: @@}]",
            "volumes: [{name: d}]",
        ),
        "/d/",
        "/e",
    ),
    "claim-unknown": Form(
        main("resources: {claims: [{name: gpus}]}", "resourceClaims: [{name: @@}]"), "gpu", "gpus"
    ),
    "claim-unused": Form(
        main("resources: {claims: [{name: @@}]}", "resourceClaims: [{name: gpus}]"), "gpu", "gpus"
    ),
    "env-twice": Form(main("env: [{name: A, value: x}, {name: @@, value: y}]"), "A", "B"),
    "secret-in-plain-sight": Form(
        main("env: [{name: HF_TOKEN, @@}]"),
        "value: abcdef",
        "valueFrom: {secretKeyRef: {name: s, key: k}}",
    ),
    "restart-rules-without-policy": Form(
        main("restartPolicyRules: [{action: Restart}]@@"), "", ", restartPolicy: Never"
    ),
    "image-moves": Form(
        job(f"parallelism: 2, {template('containers: [{name: main, image: @@}]')}"),
        "'a:latest'",
        "'a:1.4'",
    ),
}

PODS = {
    "host-network-dns": Form(
        pod("hostNetwork: true@@"), "", ", dnsPolicy: ClusterFirstWithHostNet"
    ),
    "port-clash": Form(
        pod(
            "containers: [{name: a, ports: [{containerPort: 80}]}, "
            "{name: b, ports: [{containerPort: @@}]}]"
        ),
        "80",
        "81",
    ),
    "host-port-differs": Form(
        main("ports: [{containerPort: 80, hostPort: @@}]", "hostNetwork: true"), "81", "80"
    ),
    "host-network-crowded": Form(
        job(
            pods="hostNetwork: true, dnsPolicy: ClusterFirstWithHostNet, "
            "containers: [{name: main, ports: [@@]}]"
        ),
        "",
        "{containerPort: 80}",
    ),
    "spread-counts-dead-machines": Form(
        pod(
            "topologySpreadConstraints: [{topologyKey: zone, "
            "labelSelector: {matchLabels: {app: a}}@@}]"
        ),
        "",
        ", nodeTaintsPolicy: Honor",
    ),
    "spread-selects-others": Form(
        pod("topologySpreadConstraints: [{labelSelector: {matchLabels: {app: @@}}}]"), "b", "a"
    ),
    "slow-to-leave-dead-machines": Form(
        pod(
            f"{AGENT}, tolerations: [{{key: node.kubernetes.io/not-ready, operator: Exists, "
            "effect: NoExecute, tolerationSeconds: 20}@@]"
        ),
        "",
        ", {key: node.kubernetes.io/unreachable, effect: NoExecute, tolerationSeconds: 20}",
    ),
    "toleration-impossible": Form(
        pod("tolerations: [{key: a, tolerationSeconds: 20, effect: @@}]"),
        "NoSchedule",
        "NoExecute",
    ),
    "grace-too-short": Form(pod(f"{GPUS}, terminationGracePeriodSeconds: @@"), "20", "120"),
    "companion-blocks-end": Form(
        job(pods="containers: [{name: main}@@"),
        ", {name: ship}]",
        "], initContainers: [{name: ship, restartPolicy: Always}]",
    ),
    "mesh-blocks-end": Form(pod("", labels="sidecar.istio.io/inject: @@"), "'true'", "'false'"),
    "pinned-to-a-machine": Form(
        pod("nodeSelector: {@@}"), "kubernetes.io/hostname: n7", "pool: h200"
    ),
}

JOBS = {
    "job-restart-policy": Form(kind("batch/v1", "Job", template(policy="@@")), "Always", "Never"),
    "job-policy-needs-never": Form(
        indexed(f"backoffLimitPerIndex: 3, {template(policy='@@')}"), "OnFailure", "Never"
    ),
    "job-replacement-policy": Form(
        job("podFailurePolicy: {}, podReplacementPolicy: @@"), "TerminatingOrFailed", "Failed"
    ),
    "job-frozen-by-dead-machine": Form(
        job("podReplacementPolicy: @@"), "Failed", "TerminatingOrFailed"
    ),
    "job-needs-indexed": Form(
        job("completionMode: @@, successPolicy: {}"), "NonIndexed", "Indexed"
    ),
    "job-success-count": Form(indexed("successPolicy: {rules: [{succeededCount: @@}]}"), "3", "2"),
    "job-policy-container": Form(
        job("podFailurePolicy: {rules: [{onExitCodes: {containerName: @@}}]}"), "man", "main"
    ),
    "job-eviction-counts": Form(
        job("podFailurePolicy: {rules: [{onPodConditions: [{type: @@}]}]}"),
        "Ready",
        "DisruptionTarget",
    ),
    "job-backoff-default": Form(job("@@"), "suspend: true", "backoffLimit: 3"),
    "job-falls-with-one-pod": Form(job("backoffLimit: @@"), "0", "3"),
    "job-growing-delay": Form(indexed("backoffLimit@@: 100"), "", "PerIndex"),
    "job-name-too-long": Form(
        indexed("parallelism: 11, completions: 11", name="@@"), "a" * 61, "a" * 60
    ),
    "job-hostnames-without-service": Form(
        indexed(pods="@@containers: [{name: main, env: [{name: MASTER_ADDR, value: a-0.a}]}]"),
        "",
        "subdomain: a, ",
    ),
    "job-not-all-at-once": Form(indexed("parallelism: @@, completions: 4", TORCHRUN), "2", "4"),
    "job-made-by-nobody": Form(
        job("managedBy: @@"), "example.org/x", "kubernetes.io/job-controller"
    ),
    "job-logs-go-at-once": Form(job("ttlSecondsAfterFinished: @@"), "0", "86400"),
    "cronjob-name-too-long": Form(cronjob("", name="@@"), "a" * 53, "a" * 52),
    "cronjob-embeds-training": Form(cronjob("", "@@"), "parallelism: 2", "parallelism: 1"),
    "cronjob-overlaps": Form(cronjob(), "suspend: false", "concurrencyPolicy: Forbid"),
    "cronjob-start-deadline": Form(cronjob("startingDeadlineSeconds: @@"), "5", "3600"),
    "cronjob-zone-in-schedule": Form(
        cronjob("").replace("'@daily'", "@@"), "'TZ=Europe/Oslo 0 3 * * *'", "'0 3 * * *'"
    ),
    "cronjob-restarts-submission": Form(
        cronjob(
            "",
            "backoffLimit: @@",
            "containers: [{name: main, command: [holdfast, submit, job.yaml]}]",
        ),
        "6",
        "0",
    ),
}

SERVICE = "{apiVersion: v1, kind: Service, metadata: {name: s, labels: {app: a}}, spec: {@@}}"
HEADLESS = "clusterIP: None, publishNotReadyAddresses: true, selector: {app: a}"


def files(*bodies: str) -> str:
    """Several objects in one file."""
    return "\n---\n".join(bodies)


def serving(spec: str) -> str:
    """A Deployment."""
    return kind("apps/v1", "Deployment", spec)


BESIDE = {
    "selects-nothing": Form(files(kind("v1", "Service", "selector: {app: @@}"), pod("")), "b", "a"),
    "workload-selector": Form(
        serving("selector: {matchLabels: {app: @@}}, " + template(policy="")), "b", "a"
    ),
    "subdomain-without-service": Form(
        files(SERVICE.replace("@@", HEADLESS), pod("subdomain: @@")), "a", "s"
    ),
    "service-not-headless": Form(
        files(SERVICE.replace("@@", HEADLESS.replace("None", "@@")), pod("subdomain: s")),
        "10.0.0.1",
        "None",
    ),
    "service-selects-others": Form(
        files(SERVICE.replace("@@", HEADLESS.replace("app: a", "app: @@")), pod("subdomain: s")),
        "b",
        "a",
    ),
    "service-names-too-late": Form(
        files(SERVICE.replace("@@", HEADLESS.replace("true", "@@")), pod("subdomain: s")),
        "false",
        "true",
    ),
    "port-name-unknown": Form(
        files(
            kind("v1", "Service", "selector: {app: a}, ports: [{port: 80, targetPort: @@}]"),
            main("ports: [{name: agent, containerPort: 7070}]"),
        ),
        "metrics",
        "agent",
    ),
    "monitor-selects-nothing": Form(
        files(
            SERVICE.replace("@@", ""),
            kind(
                "monitoring.coreos.com/v1",
                "ServiceMonitor",
                "selector: {matchLabels: {app: @@}}, endpoints: []",
            ),
        ),
        "b",
        "a",
    ),
    "budget-protects-the-dead": Form(
        kind("policy/v1", "PodDisruptionBudget", "unhealthyPodEvictionPolicy: @@"),
        "IfHealthyBudget",
        "AlwaysAllow",
    ),
    "budget-blocks-drains": Form(
        files(
            kind(
                "policy/v1",
                "PodDisruptionBudget",
                "minAvailable: @@, selector: {matchLabels: {app: a}}",
            ),
            job(),
        ),
        "2",
        "1",
    ),
    "budget-needs-scale": Form(
        files(
            kind("policy/v1", "PodDisruptionBudget", "@@: 1, selector: {matchLabels: {app: a}}"),
            job(),
        ),
        "maxUnavailable",
        "minAvailable",
    ),
    "spare-pushes-others-out": Form(
        "{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: my-spare}, "
        "value: 0, preemptionPolicy: @@}",
        "PreemptLowerPriority",
        "Never",
    ),
    "policy-has-no-hold": Form(
        files(
            kind("networking.k8s.io/v1", "NetworkPolicy", "podSelector: {matchLabels: {app: a}}"),
            pod("hostNetwork: @@"),
        ),
        "true",
        "false",
    ),
    "claim-not-shared": Form(
        files(
            kind("v1", "PersistentVolumeClaim", "accessModes: [@@]"),
            job(pods="volumes: [{name: d, persistentVolumeClaim: {claimName: a}}]"),
        ),
        "ReadWriteOnce",
        "ReadWriteMany",
    ),
    "object-twice": Form(files(pod(""), pod("", name="@@")), "a", "b"),
    "object-unnamed": Form("{apiVersion: v1, kind: Pod, metadata: {@@}}", "", "name: a"),
}

MANAGED = {
    "managed-restart-policy": Form(
        pod(AGENT).replace("restartPolicy: Never", "restartPolicy: @@"), "OnFailure", "Never"
    ),
    "managed-rank-set": Form(
        main("command: [holdfast, agent], env: [{name: @@, value: x}]"), "RANK", "LANE"
    ),
    "managed-backoff-limit": Form(indexed("backoffLimit: @@", AGENT), "6", "2147483647"),
    "managed-replacement-policy": Form(
        indexed("podReplacementPolicy: @@", AGENT), "Failed", "TerminatingOrFailed"
    ),
    "managed-no-end-rule": Form(
        indexed("@@", AGENT), "suspend: false", "successPolicy: {rules: [{succeededCount: 1}]}"
    ),
    "managed-rolling-update": Form(
        serving(
            "replicas: 1, strategy: {type: @@}, "
            + template("containers: [{name: main, command: [holdfast, controller]}]", policy="")
        ),
        "RollingUpdate",
        "Recreate",
    ),
    "managed-liveness": Form(
        main("command: [holdfast, agent], livenessProbe: {@@}"),
        "exec: {command: [sh, stalled.sh]}",
        "httpGet: {path: /alive, port: 7070}",
    ),
}

"""Comments of the manifests: where a choice is not obvious, the reason in a sentence.

The key is the place: the kind and the keys below it without list positions, or `*` and the last
keys for any kind; `=value` at its end: only with this value. A comment stands at the first such
place of a stream. The reasons were measured or read in the engines' sources; docs/guides/engines.md
tells them at length.
"""

NOTES: dict[str, str] = {
    # ── pods ──
    "*.spec.terminationGracePeriodSeconds": "Time for a checkpoint between SIGTERM and SIGKILL.",
    "*.spec.tolerations": (
        "A machine that does not answer is left after 20 s; Kubernetes alone would wait 300 s."
    ),
    "Deployment.spec.template.spec.tolerations": (
        "A machine that does not answer is left after 10 s; Kubernetes alone would wait 300 s."
    ),
    "*.spec.dnsPolicy": "With the host's network, names of the cluster are found only like this.",
    "*.spec.automountServiceAccountToken=false": "Training needs no rights in the cluster.",
    "*.containers.readinessProbe": (
        "Ready: the agent has found the controller. Whether training moves on is not asked here, "
        "or a queue would take a waiting job for a broken one."
    ),
    "*.containers.livenessProbe": (
        "Alive: the agent's loop turns. A hang of the training is the controller's to judge."
    ),
    "*.topologySpreadConstraints.nodeTaintsPolicy": (
        "Otherwise tainted machines count as places that stay empty."
    ),
    "*.volumes.emptyDir.medium": "In memory: counted against the memory limit of the pod.",
    # ── beside the pods ──
    "Service.spec.publishNotReadyAddresses": (
        "Nodes have to find each other before they are ready."
    ),
    "Deployment.spec.replicas=2": (
        "One of them has the lease and is the controller; the other takes it within seconds."
    ),
    "Deployment.spec.strategy": (
        "A rolling update waits until the new pod is ready, which it is only with the lease that "
        "the old one holds."
    ),
    "Deployment.spec.template.spec.containers.readinessProbe": (
        "Who has the lease listens, and the Service leads there and nowhere else."
    ),
    "*.spec.automountServiceAccountToken=true": "The only pod that talks to Kubernetes.",
    "PodDisruptionBudget.spec.minAvailable": (
        "A number of pods: maxUnavailable needs the scale of their owner, and where the owner has "
        "none, as a Job, nothing may be evicted at all."
    ),
    "PodDisruptionBudget.spec.unhealthyPodEvictionPolicy": (
        "Or a crashed pod holds up the drain of its machine."
    ),
    "NetworkPolicy.spec.ingress": "From pods of this job; from anywhere only the metrics.",
    "Role.rules": "No right on anything but this job, as far as Kubernetes can limit it.",
    "VolumeSnapshot.spec": (
        "Taken once, when it is applied. Delete it and apply it again for a newer one."
    ),
    "PersistentVolumeClaim.spec.accessModes": "Every node writes its part of a checkpoint.",
    # ── batch Jobs, wherever they are ──
    "*.spec.backoffLimit": (
        "Who repairs counts the failures: Holdfast in managed mode, whoever is around this Job "
        "in plain mode."
    ),
    "Job.spec.backoffLimit": (
        "The failure budget is Holdfast's. A Job's own would end the training, and its limit "
        "also counts evictions."
    ),
    "*.spec.podReplacementPolicy": (
        "No podFailurePolicy beside it: that would force `Failed`, and a dead machine would then "
        "hold up the replacement of its pod for as long as it is gone."
    ),
    "*.spec.successPolicy.rules": "Complete when as many have succeeded as train; spares go then.",
    "Job.spec.backoffLimitPerIndex": (
        "Counted for each index: with one limit for all, the delay before each new pod doubles "
        "with every failure of any of them."
    ),
    "CronJob.spec.concurrencyPolicy": "Looks only at Jobs of this CronJob.",
    "CronJob.spec.startingDeadlineSeconds": "A start that was missed for longer is left out.",
    # ── other engines ──
    "JobSet.spec.failurePolicy": "A Job that fails for good ends the set; no restart hides it.",
    "*.schedulingPolicy.minAvailable": "The gang is what trains; spares join when there is room.",
    "Job.spec.maxRetry": "Every restart of a pod counts, and the default is 3.",
    "Job.spec.policies": (
        "The order counts: the first that fits decides, and an exit with any status is a failure "
        "too."
    ),
    "Job.spec.minSuccess": "Done when as many have succeeded as train; the rest is ended.",
    "Job.spec.minAvailable": "The gang is what trains; spares join when there is room.",
    "PodGroup.spec.minMember": "The gang is what trains; spares join when there is room.",
    "PodGroup.spec.minResources": "Of the gang without its spares, or it would wait for theirs.",
    "PodGroup.spec.schedulingPolicy": "The gang is what trains; spares join when there is room.",
    "TFJob.spec.successPolicy": "Without it the job ends with worker 0, whoever still trains.",
    "*.Worker.restartPolicy=ExitCode": (
        "From exit status 128 on a pod is replaced at once, below that the job has failed."
    ),
    "*.Worker.restartPolicy=OnFailure": (
        "A container that fails starts again in its pod. ExitCode would end the job at the first "
        "exit below 128, as any error in Python is."
    ),
    "MPIJob.spec.mpiReplicaSpecs.Worker.restartPolicy=OnFailure": (
        "A worker that failed is never made again, so its container starts again where it is."
    ),
    "*.cleanPodPolicy": "What still runs at the end is removed, finished pods keep their logs.",
    "TrainJob.spec.runtimeRef": (
        "A runtime of its own: failure policies can only be set there, not in the TrainJob."
    ),
    "*.launcherCreationPolicy=WaitForWorkersReady": (
        "An mpirun that starts before its workers gives up."
    ),
    "*.launcherCreationPolicy=AtStartup": (
        "The launcher is an agent that waits for the end; it has no need of the workers."
    ),
}

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
        "Leave an unreachable machine after 20 s; the default of Kubernetes is 300 s."
    ),
    "Deployment.spec.template.spec.tolerations": (
        "Leave an unreachable machine after 10 s; the default of Kubernetes is 300 s."
    ),
    "*.spec.dnsPolicy": "Cluster DNS with host network.",
    "*.spec.automountServiceAccountToken=false": "Training needs no access to the API server.",
    "*.containers.readinessProbe": (
        "Ready: the agent is connected to the controller. Training progress is not probed, or "
        "queues would consider a waiting job broken."
    ),
    "*.containers.livenessProbe": (
        "Live: the agent's event loop runs. Hangs of the training are detected by the controller."
    ),
    "*.topologySpreadConstraints.nodeTaintsPolicy": (
        "Otherwise tainted machines count as empty domains."
    ),
    "*.volumes.emptyDir.medium": "In memory: counts against the memory limit of the pod.",
    # ── beside the pods ──
    "Service.spec.publishNotReadyAddresses": (
        "Nodes must resolve each other before they are ready."
    ),
    "Deployment.spec.replicas=2": (
        "One holds the lease and is the controller; the standby takes over within seconds."
    ),
    "Deployment.spec.strategy": (
        "A rolling update waits until the new pod is ready, which requires the lease that the "
        "old one holds."
    ),
    "Deployment.spec.template.spec.containers.readinessProbe": (
        "Only the holder of the lease listens, so the Service routes to it alone."
    ),
    "*.spec.automountServiceAccountToken=true": "The only pod that talks to Kubernetes.",
    "PodDisruptionBudget.spec.minAvailable": (
        "A number of pods: maxUnavailable requires the scale subresource of their owner; without "
        "one, as for a Job, no pod could be evicted."
    ),
    "PodDisruptionBudget.spec.unhealthyPodEvictionPolicy": (
        "Otherwise a crashed pod blocks the drain of its machine."
    ),
    "NetworkPolicy.spec.ingress": "From pods of this job; metrics from anywhere.",
    "Role.rules": "Permissions on this job only, as far as RBAC can limit them.",
    "VolumeSnapshot.spec": (
        "Taken once, when applied. Delete and apply it again for a newer snapshot."
    ),
    "PersistentVolumeClaim.spec.accessModes": "Every node writes its part of a checkpoint.",
    # ── batch Jobs, wherever they are ──
    "*.spec.backoffLimit": (
        "Failures are counted by what restarts the job: Holdfast in managed mode, an outer "
        "controller in plain mode."
    ),
    "Job.spec.backoffLimit": (
        "Holdfast limits failures. The backoffLimit of a Job would end the training, and also "
        "counts evictions."
    ),
    "*.spec.podReplacementPolicy": (
        "No podFailurePolicy: it would force `Failed`, and the pod of a failed machine would not "
        "be replaced until the machine is back."
    ),
    "*.spec.successPolicy.rules": (
        "Complete when as many pods have succeeded as train; spares are then removed."
    ),
    "Job.spec.backoffLimitPerIndex": (
        "Counted per index: with a common limit, the back-off delay of every new pod doubles "
        "with each failure of any pod."
    ),
    "CronJob.spec.concurrencyPolicy": "Applies only to Jobs of this CronJob.",
    "CronJob.spec.startingDeadlineSeconds": "A start that was missed by more than this is skipped.",
    # ── other engines ──
    "JobSet.spec.failurePolicy": "A Job that fails permanently fails the set; it is not restarted.",
    "*.schedulingPolicy.minAvailable": (
        "The gang is the training nodes; spares start when capacity is available."
    ),
    "Job.spec.maxRetry": "Every restart of a pod counts, and the default is 3.",
    "Job.spec.policies": (
        "Order matters: the first matching policy applies, and any nonzero exit also matches "
        "PodFailed."
    ),
    "Job.spec.minSuccess": (
        "Complete when as many pods have succeeded as train; the others are terminated."
    ),
    "Job.spec.minAvailable": (
        "The gang is the training nodes; spares start when capacity is available."
    ),
    "PodGroup.spec.minMember": (
        "The gang is the training nodes; spares start when capacity is available."
    ),
    "PodGroup.spec.minResources": (
        "Resources of the gang without its spares, or it would wait for theirs."
    ),
    "PodGroup.spec.schedulingPolicy": (
        "The gang is the training nodes; spares start when capacity is available."
    ),
    "TFJob.spec.successPolicy": (
        "Without it the job ends with worker 0, even if others are still training."
    ),
    "*.Worker.restartPolicy=ExitCode": (
        "A pod with exit status 128 or above is replaced immediately; below that the job has "
        "failed."
    ),
    "*.Worker.restartPolicy=OnFailure": (
        "A failed container is restarted in its pod. ExitCode would fail the job at the first "
        "exit status below 128, which every Python error has."
    ),
    "MPIJob.spec.mpiReplicaSpecs.Worker.restartPolicy=OnFailure": (
        "A failed worker pod is never recreated, so its container is restarted in place."
    ),
    "*.cleanPodPolicy": "Running pods are removed at the end; finished pods keep their logs.",
    "RayJob.spec.backoffLimit": "A retry is a new RayCluster, and a new start of everything.",
    "RayJob.spec.shutdownAfterJobFinishes": (
        "Frees the nodes at the end; suspension, and so Kueue, requires it."
    ),
    "RayJob.spec.submitterConfig": (
        "A head that is lost costs a try, and the next head is given the entrypoint again."
    ),
    "RayJob.spec.submitterPodTemplate.spec.restartPolicy=OnFailure": (
        "The kubelet forgets restarts; a Job waits twice as long after each failed pod."
    ),
    "RayJob.spec.rayClusterSpec.headGroupSpec.rayStartParams": "No tasks and actors on the head.",
    "RayJob.spec.rayClusterSpec.workerGroupSpecs.template.metadata.annotations": (
        "The agent is the command; it starts Ray beside itself as KubeRay would."
    ),
    "RayJob.spec.rayClusterSpec.workerGroupSpecs.template.spec.restartPolicy=OnFailure": (
        "With Never the pod would be deleted and recreated whatever its exit status."
    ),
    "TrainJob.spec.runtimeRef": (
        "A separate runtime: failure policies can only be set there, not in the TrainJob."
    ),
    "*.launcherCreationPolicy=WaitForWorkersReady": (
        "An mpirun that starts before its workers fails."
    ),
    "*.launcherCreationPolicy=AtStartup": (
        "The launcher is an agent that waits for the end; it does not need the workers."
    ),
}

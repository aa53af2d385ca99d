"""The kinds of errors that a person may see, each with the exit status that it ends a command with.

`holdfast explain SLUG` prints the text. One table, so that documentation, tests and code cannot
drift apart.
"""

from holdfast.exit_status import ExitStatus, Slug
from holdfast.storage_slugs import STORAGE_SLUGS

SLUGS: dict[str, Slug] = {
    "job-invalid": Slug(
        ExitStatus.USAGE,
        "The job description has keys that are unknown, missing or out of range. All problems "
        "are reported in one pass, each with its path. `holdfast schema` prints the accepted "
        "keys. Nothing was started.",
    ),
    "job-file-unreadable": Slug(
        ExitStatus.USAGE,
        "The job file does not exist, cannot be read, or is not YAML. Nothing was started.",
    ),
    "usage": Slug(
        ExitStatus.USAGE,
        "The command line is invalid: an unknown option, a missing value, or mutually exclusive "
        "options. `holdfast COMMAND --help` lists the accepted options.",
    ),
    "locale-encoding": Slug(
        ExitStatus.USAGE,
        "A path, an argument or a variable has a character that the encoding of the shell's locale "
        "lacks (`LC_ALL=C` with `PYTHONUTF8=0`, Latin-1). Nothing was started.",
    ),
    "unknown-slug": Slug(
        ExitStatus.NOT_FOUND,
        "`holdfast explain` accepts only the slugs that errors print in brackets. Without an "
        "argument it lists all of them.",
    ),
    "job-not-found": Slug(
        ExitStatus.NOT_FOUND,
        "No job of that name has a folder in HOLDFAST_HOME (default ~/.holdfast). The usual "
        "reasons are a different HOLDFAST_HOME, a different user, or a folder that was removed.",
    ),
    "job-exists": Slug(
        ExitStatus.USAGE,
        "A job of this name has already been run and its journal still exists. Choose another "
        "name with --name, or remove the old record with `holdfast run --replace`.",
    ),
    "job-running": Slug(
        ExitStatus.USAGE,
        "A controller holds this job's lock; a job has exactly one controller. `holdfast watch "
        "NAME` shows its progress, `holdfast stop NAME` stops it.",
    ),
    "job-replaced": Slug(
        ExitStatus.PLATFORM,
        "The folder of a job was removed or moved while its controller was running, and another "
        "one of that name was made or restored. The old controller ends without touching the new "
        "folder; a new job of that name has ended the old one's processes when it began. A job "
        "whose record was restored is taken over by `holdfast resume NAME`.",
    ),
    "limit-too-small": Slug(
        ExitStatus.PLATFORM,
        "A per-process limit of this shell (`ulimit -a`) is too small for the job: the number of "
        "open files, virtual memory, or the file size, which also limits the shared memory for "
        "snapshots. Nothing was started.",
    ),
    "machine-too-small": Slug(
        ExitStatus.PLATFORM,
        "The nodes of a local job and their workers are processes of this machine, and so many do "
        "not fit into its memory, or are too many for its processors, whatever they train. Nothing "
        "was started.",
    ),
    "process-stuck": Slug(
        ExitStatus.PLATFORM,
        "A process of the job cannot be killed: it is blocked in the kernel, usually by a file "
        "system or a device that does not respond. Nothing of the job is removed until the "
        "process has exited. The message names the process and the kernel function that it is "
        "blocked in. A hung mount must recover or be unmounted; a hung device needs a reset, or "
        "the machine a reboot.",
    ),
    "job-ended": Slug(
        ExitStatus.USAGE,
        "The job has already ended, so it cannot be resumed: its nodes have exited and their "
        "memory snapshots are lost. Run it again under another name.",
    ),
    "journal-corrupt": Slug(
        ExitStatus.PLATFORM,
        "The journal is corrupt: a checksum does not match, or lines are missing or out of "
        "order. An incomplete last line is normal after a crash and is dropped. Anything else is "
        "refused by `resume`, because replaying it could lead to decisions that differ from the "
        "original ones. Commands that only read show the entries before the damage and end with "
        "this status.",
    ),
    "journal-state-damaged": Slug(
        ExitStatus.PLATFORM,
        "The saved state beside the journal, `journal.state`, is damaged. No data is lost: the "
        "journal is replayed from its first line, which takes longer. The file is written again "
        "while the job runs.",
    ),
    "journal-diverges": Slug(
        ExitStatus.PLATFORM,
        "Replaying the journal with this version of Holdfast leads to a different state of the job "
        "than was recorded. It is refused where this version cannot follow the journal at all, or "
        "would have ended the job, which continued. The version that wrote the journal can resume "
        "the job.",
    ),
    "controller-version": Slug(
        ExitStatus.PLATFORM,
        "The controller of the job runs and answers, but in the form of another version of "
        "Holdfast. The job is not affected. The version that the job was started with can ask it.",
    ),
    "agent-version": Slug(
        ExitStatus.PLATFORM,
        "The nodes of the job were started by another version of Holdfast, whose agents would not "
        "understand this one: they would end, and their workers with them. Nothing was done; the "
        "workers train on. The version that the job was started with can take it over.",
    ),
    "journal-version": Slug(
        ExitStatus.PLATFORM,
        "The journal was written by a version of Holdfast whose format this version does not "
        "support.",
    ),
    "record-damaged": Slug(
        ExitStatus.PLATFORM,
        "A file in the folder of a job is damaged: it is not what Holdfast wrote. The message "
        "names the file and how it can be restored. Nothing was started.",
    ),
    "record-stale": Slug(
        ExitStatus.PLATFORM,
        "The status of a job in a cluster is what its controller published last, and that was "
        "longer ago than it should be. Either no controller runs, or it cannot reach the API "
        "server. Training does not depend on either. The command did what it could.",
    ),
    "record-incomplete": Slug(
        ExitStatus.PLATFORM,
        "A part of what a controller has published about its job is missing: a ConfigMap "
        "`NAME-record-N` was deleted or changed by another client, or there are more incidents "
        "than these ConfigMaps have room for. What is there was shown.",
    ),
    "controller-silent": Slug(
        ExitStatus.PLATFORM,
        "A controller holds the job's lock but does not respond: it is starting, stopped "
        "(SIGSTOP) or stuck, or its `controller.json` or `token` is damaged. Nothing was stopped.",
    ),
    "home-unwritable": Slug(
        ExitStatus.PLATFORM,
        "A file or folder in HOLDFAST_HOME is not accessible: its permissions or a read-only "
        "mount forbid it.",
    ),
    "home-unknown": Slug(
        ExitStatus.USAGE,
        "The home directory cannot be determined: HOME is not set, and the user has no entry in "
        "/etc/passwd, as in containers with an arbitrary user ID. Set HOLDFAST_HOME, or HOME.",
    ),
    "disk-full": Slug(
        ExitStatus.PLATFORM,
        "The disk with the files of the job is full, has no free inodes, or a quota is exceeded.",
    ),
    "output-unwritable": Slug(
        ExitStatus.PLATFORM,
        "Standard output cannot be written: the disk with the output file is full, or the "
        "terminal is closed. Everything that the command does besides printing was done.",
    ),
    "disk-failing": Slug(
        ExitStatus.PLATFORM,
        "The disk with the files of the job, or the file server behind it, reports I/O errors. "
        "The kernel log has details.",
    ),
    "path-unusable": Slug(
        ExitStatus.PLATFORM,
        "A path has the wrong type: a file instead of a folder or vice versa, a pipe, a symbolic "
        "link loop, a name that is too long, or a file that exceeds the size limit.",
    ),
    "too-many-open-files": Slug(
        ExitStatus.PLATFORM,
        "This process, or the machine, has reached its limit of open files. `ulimit -n` shows "
        "the limit of a process.",
    ),
    "system-error": Slug(
        ExitStatus.PLATFORM,
        "The operating system returned an error that has no slug of its own. The message "
        "contains it verbatim.",
    ),
    "controller-start-failed": Slug(
        ExitStatus.PLATFORM,
        "The controller of a detached job exited, or did not respond in time, before the job was "
        "running: the message names its log, `holdfast stop NAME` cleans up. Or a job in a cluster "
        "has not ended and its Deployment was scaled down or deleted: `holdfast resume NAME --on "
        "kubernetes` starts it.",
    ),
    "job-not-running": Slug(
        ExitStatus.NOT_FOUND,
        "The job has no controller that could be asked: it has ended, or waits to be resumed. "
        "`holdfast status NAME` says which, `holdfast resume NAME` starts a controller again.",
    ),
    "rank-not-found": Slug(
        ExitStatus.NOT_FOUND,
        "No running worker of the job has this rank, or its node has not answered. `holdfast "
        "status NAME` shows which nodes train.",
    ),
    "profile-refused": Slug(
        ExitStatus.USAGE,
        "No profile was started: another one of the job is being taken, the job is not training, "
        "or it does not have the rank. The message says which. The job trains on.",
    ),
    "profile-failed": Slug(
        ExitStatus.PLATFORM,
        "None of the ranks has left a profile: their workers ended, took too long, or cannot be "
        "profiled, because they report no steps, do not use PyTorch, or have a torch.profiler of "
        "their own. The message has the reason of each. The job trains on, and nothing is left.",
    ),
    "nsys-unavailable": Slug(
        ExitStatus.USAGE,
        "Nsight Systems cannot be started on a process that runs already: on Linux it records only "
        "what was started under it (`nsys launch`, `nsys profile`); docs/guides/profiles.md has a "
        "job file that does so. `holdfast profile` without --nsys needs no restart.",
    ),
    "fault-impossible": Slug(
        ExitStatus.PLATFORM,
        "The fault cannot be injected here: a tool or a right is missing, or it would hit more "
        "than the job. Nothing was changed. `holdfast chaos --list` shows all faults.",
    ),
    "incident-not-found": Slug(
        ExitStatus.NOT_FOUND,
        "The job has no incident of that number. `holdfast incidents NAME` lists those it has.",
    ),
    "script-not-found": Slug(
        ExitStatus.USAGE,
        "The script, module or working directory of the job does not exist on this machine.",
    ),
    "tls-unusable": Slug(
        ExitStatus.PLATFORM,
        "HOLDFAST_TLS names a folder whose certificate, key or CA certificate cannot be read. "
        "While it is set, nothing is sent unencrypted, so nothing was started.",
    ),
    "code-unusable": Slug(
        ExitStatus.USAGE,
        "The folder that `code` names cannot be shipped to the nodes: it does not exist, "
        "contains a symbolic link to a path outside of it, or exceeds the size limit (32 MB "
        "compressed, 200 MB in total). Nothing was submitted.",
    ),
    "platform-unsupported": Slug(
        ExitStatus.PLATFORM,
        "Holdfast needs Linux: it relies on memfd, PR_SET_PDEATHSIG and process groups. For a job "
        "on this machine it needs the loopback interface and /proc of its own PID namespace, too.",
    ),
    "not-tracked": Slug(
        ExitStatus.USAGE,
        "Something given to run.track() cannot be snapshotted: it needs state_dict() and "
        "load_state_dict(), and its state may hold only tensors, numbers, strings, bytes, lists, "
        "tuples, sets and dicts of these.",
    ),
    "snapshot-too-large": Slug(
        ExitStatus.PLATFORM,
        "Two copies of the tracked state do not fit into the free memory of this machine. The "
        "message shows the calculation.",
    ),
    "layout-unknown": Slug(
        ExitStatus.JOB_FAILED,
        "The saved state is from a different number of ranks, and it does not record whether "
        "tensors of the same name on several ranks are replicas or shards. Models wrapped by "
        "DDP, fully_shard or parallelize_module record it; plain modules on several ranks do not.",
    ),
    "snapshot-unreadable": Slug(
        ExitStatus.PLATFORM,
        "Parts of a memory snapshot repeatedly failed their checksum after transfer between "
        "ranks, although the senders had verified them. The cause is faulty memory or a faulty "
        "network.",
    ),
    "loader-cannot-resume": Slug(
        ExitStatus.USAGE,
        "The position in the training data cannot be saved and restored. Nothing was trained.",
    ),
    "trainer-unsupported": Slug(
        ExitStatus.USAGE,
        "The integration does not support this version of the trainer, or one of its settings.",
    ),
    "loader-empty": Slug(
        ExitStatus.USAGE,
        "The data loader yields no batch: the dataset is smaller than one global batch, or an "
        "iterable ended twice without yielding anything.",
    ),
    "loader-missing": Slug(
        ExitStatus.USAGE,
        "`recovery.skip_batches` is set, but `run.track()` was given no loader to skip batches of.",
    ),
    "scenario-not-found": Slug(
        ExitStatus.USAGE,
        "There is neither a shipped scenario of that name nor a file with that path. "
        "docs/guides/capacity.md shows how to write one.",
    ),
    "scenario-unreadable": Slug(
        ExitStatus.USAGE,
        "A scenario or a failure mix cannot be read, or is not YAML. Nothing was run.",
    ),
    "scenario-invalid": Slug(
        ExitStatus.USAGE,
        "A scenario or a failure mix has unknown or missing keys, or numbers out of range. All "
        "problems are reported in one pass, each with its path. Nothing was run.",
    ),
    "plan-invalid": Slug(
        ExitStatus.USAGE,
        "What `holdfast plan` was given cannot be planned with: a model whose formulas are not "
        "known or whose numbers contradict each other, a GPU that is not known, a cluster file "
        "with unknown keys. The message names the number and what would be accepted.",
    ),
    "plan-impossible": Slug(
        ExitStatus.USAGE,
        "No layout fits: a chosen dimension does not divide the model, the GPUs or the batch, or "
        "the training does not fit into the memory. The message names the numbers and what would "
        "fit.",
    ),
    "plot-unavailable": Slug(
        ExitStatus.USAGE,
        "Plots need matplotlib, which the extra `plot` installs, and a file name that ends with "
        ".png or .svg in a writable folder.",
    ),
    "simulation-killed": Slug(
        ExitStatus.PLATFORM,
        "A simulation process was killed by a signal, most often by the kernel because it ran "
        "out of memory. Its worlds are lost; each can be run again with its seed.",
    ),
    "manifest-unreadable": Slug(
        ExitStatus.USAGE,
        "A file with Kubernetes manifests does not exist, cannot be read, is not YAML, has a "
        "duplicate key, or contains no objects. Nothing was checked.",
    ),
    "image-missing": Slug(
        ExitStatus.USAGE,
        "A job on Kubernetes runs in a container image, and the job file names none. Nothing was "
        "rendered.",
    ),
    "engine-unsupported": Slug(
        ExitStatus.USAGE,
        "The engine does not support a setting of the job file in this mode. The message names "
        "the engines that do; docs/reference/engines.md has the complete table. Settings are "
        "never ignored silently, so nothing was rendered.",
    ),
    "setting-idle": Slug(
        ExitStatus.USAGE,
        "A setting would have no effect, because another setting that it requires is missing. It "
        "is rejected rather than ignored; nothing was rendered.",
    ),
    "settings-conflict": Slug(
        ExitStatus.USAGE,
        "Two settings contradict each other, or the same value would be set from two places. "
        "Nothing was rendered.",
    ),
    "update-refused": Slug(
        ExitStatus.USAGE,
        "A node could not prepare the new version: its code does not compile, fails above `join()` "
        "or does not reach it, or its bundle is damaged. Or the new image cannot be pulled, "
        "lacks what the job needs, or the engine cannot replace pods one by one. The job continues "
        "with the version that it has.",
    ),
    "update-first": Slug(
        ExitStatus.USAGE,
        "The job runs the version that it was started with, so there is none to return to.",
    ),
    "update-undelivered": Slug(
        ExitStatus.USAGE,
        "The request was not delivered: the job has ended, or its controller does not run. Nothing "
        "was changed.",
    ),
    "update-image": Slug(
        ExitStatus.USAGE,
        "A job on this machine has no image. Nothing was changed.",
    ),
    "scale-out-of-range": Slug(
        ExitStatus.USAGE,
        "The job may not have so many nodes: `elasticity.min_nodes` and `elasticity.max_nodes` of "
        "its job file are the bounds. Nothing was changed.",
    ),
    "scale-undelivered": Slug(
        ExitStatus.USAGE,
        "The request was not delivered: the job has ended, or its controller does not run. Nothing "
        "was changed.",
    ),
    "size-impossible": Slug(
        ExitStatus.USAGE,
        "A size in the job file is impossible; the message shows the calculation. Nothing was "
        "rendered.",
    ),
    "name-invalid": Slug(
        ExitStatus.USAGE,
        "A name that the engine derives from the job's name would be too long or start with a "
        "digit, and Kubernetes would reject or truncate it. Nothing was rendered.",
    ),
    "plaintext-secret": Slug(
        ExitStatus.USAGE,
        "A value in the job file looks like a password, a key or a token. Everyone with read "
        "access to pods could read it; put it into a Kubernetes Secret and refer to it under "
        "`secrets`.",
    ),
    "kubernetes-too-old": Slug(
        ExitStatus.USAGE,
        "A setting requires a newer version of Kubernetes than --kubernetes-version. Nothing was "
        "rendered.",
    ),
    "sweep-unusable": Slug(
        ExitStatus.USAGE,
        "A sweep of this name exists with other values, or cannot be run in this way. The message "
        "says why; nothing was started.",
    ),
    "cluster-only": Slug(
        ExitStatus.USAGE,
        "Only an engine on Kubernetes can run this job: it asks for Intel MPI. "
        "`holdfast render` writes its manifests.",
    ),
    "kubeconfig-unusable": Slug(
        ExitStatus.USAGE,
        "The kubeconfig, or the service account of the pod, cannot be read, or its credentials "
        "are not accepted by the cluster. The message names the file or the plugin; nothing was "
        "changed in the cluster.",
    ),
    "context-unknown": Slug(
        ExitStatus.USAGE,
        "The kubeconfig has no context of that name. The message lists the existing ones. "
        "Nothing was sent to any cluster.",
    ),
    "cluster-unreachable": Slug(
        ExitStatus.PLATFORM,
        "The API server of the cluster does not respond: the address is wrong, a VPN is down, or "
        "the certificate is not trusted. Running jobs continue.",
    ),
    "dashboard-missing": Slug(
        ExitStatus.PLATFORM,
        "The page needs a web server, which the base package does not include. The extra "
        "`dashboard` installs it.",
    ),
    "otlp-missing": Slug(
        ExitStatus.PLATFORM,
        "The job file asks for OpenTelemetry (`otlp`), which the base package does not include. "
        "The extra `otel` installs it. Nothing was started.",
    ),
    "kubernetes-missing": Slug(
        ExitStatus.PLATFORM,
        "Access to a cluster needs a Kubernetes client, which the base package does not include. "
        "The extra `kubernetes` installs it.",
    ),
    "ray-missing": Slug(
        ExitStatus.PLATFORM,
        "Nodes in a Ray cluster need Ray, which the base package does not include. The extra `ray` "
        "installs it; its version, and Python's, have to be those of the cluster.",
    ),
    "ray-unreachable": Slug(
        ExitStatus.PLATFORM,
        "`--on ray` runs on a machine that belongs to a Ray cluster: the head, a worker, or the "
        "container of `ray job submit`. No such cluster answers here, or not at `ray.address`. "
        "`holdfast stop --force` ends a job whose cluster is gone for good in its record: its "
        "journal, logs and checkpoints stay, and `holdfast run --replace` may take its name.",
    ),
    "engine-missing": Slug(
        ExitStatus.USAGE,
        "The cluster does not serve a kind of object that the job needs: the operator of the "
        "engine, or of another feature that the job file uses, is not installed, or in a "
        "different version. Nothing of the job was left in the cluster.",
    ),
    "namespace-missing": Slug(
        ExitStatus.USAGE,
        "The namespace does not exist in this cluster, or is being deleted. Nothing was created.",
    ),
    "name-taken": Slug(
        ExitStatus.USAGE,
        "An object that the job would create already exists and does not belong to a job of this "
        "name. It was not changed; nothing was created.",
    ),
    "rights-missing": Slug(
        ExitStatus.PLATFORM,
        "You, or the service account of a pod, lack a permission that the message names. "
        "`holdfast doctor --on kubernetes job.yaml` lists all permissions that the job needs.",
    ),
    "quota-exceeded": Slug(
        ExitStatus.PLATFORM,
        "A ResourceQuota or a LimitRange of the namespace does not allow the job. If the job was "
        "accepted, it starts as soon as quota is available.",
    ),
    "admission-refused": Slug(
        ExitStatus.PLATFORM,
        "An admission rule of the cluster rejected an object of the job: a webhook, an admission "
        "policy or a pod security standard.",
    ),
    "webhook-down": Slug(
        ExitStatus.PLATFORM,
        "An admission webhook for this kind of object does not respond, so objects of this kind "
        "cannot be created, changed or, with a finalizer, deleted. This is an outage, not a "
        "policy: it ends when the controller that serves the webhook (Kueue's, Trainer's, "
        "JobSet's) runs again.",
    ),
    "manifest-refused": Slug(
        ExitStatus.USAGE,
        "The API server rejected an object of the job as invalid: an unknown field, which "
        "indicates a different version of the engine, or a change to an immutable field.",
    ),
    "cluster-refused": Slug(
        ExitStatus.PLATFORM,
        "The API server returned an error that has no slug of its own. The message contains it "
        "verbatim; requests that already succeeded are not undone.",
    ),
    "image-unavailable": Slug(
        ExitStatus.PLATFORM,
        "Machines of the cluster cannot pull the image of the job: the name or tag does not "
        "exist, or the registry requires credentials (image.pull_secrets).",
    ),
    "unschedulable": Slug(
        ExitStatus.PLATFORM,
        "The scheduler cannot place some pods of the job. The message quotes the scheduler. The "
        "job starts when capacity is available.",
    ),
    "claim-pending": Slug(
        ExitStatus.PLATFORM,
        "A PersistentVolumeClaim that the job mounts does not exist or is not bound: its storage "
        "class is missing or does not support the access mode, or the provisioner fails.",
    ),
    "pod-unstartable": Slug(
        ExitStatus.PLATFORM,
        "A machine cannot start a container of the job: a Secret or ConfigMap that it mounts "
        "does not exist, or its program cannot be run. The kubelet keeps retrying.",
    ),
    "not-managed": Slug(
        ExitStatus.USAGE,
        "The job runs in plain mode: the engine's stock manifests, without Holdfast's "
        "controller. There is no record of it and no controller to query.",
    ),
    "machine-not-cordoned": Slug(
        ExitStatus.NOT_FOUND,
        "There is no such machine in the cluster, or Holdfast has not cordoned it. Taints that "
        "Holdfast did not set are not removed.",
    ),
    "pod-incomplete": Slug(
        ExitStatus.USAGE,
        "`holdfast agent` found missing or invalid environment variables in its pod. Manifests "
        "of `holdfast render` and `holdfast run` set all of them; an overlay or a webhook must "
        "not remove any.",
    ),
    "port-unusable": Slug(
        ExitStatus.PLATFORM,
        "The port on which an agent serves probes is in use or unavailable. With host network, "
        "ports are shared with everything else on the machine.",
    ),
    "address-unusable": Slug(
        ExitStatus.USAGE,
        "A command cannot serve its page on the address and port that its options name: the port "
        "is in use or reserved, or the address is not one of this machine. Name another.",
    ),
    "clusters-missing": Slug(
        ExitStatus.USAGE,
        "`holdfast federate` runs a managed job in the first of several clusters that admits it. "
        "The job file names none under `clusters`, or uses plain mode or a schedule. Nothing was "
        "started.",
    ),
    "clusters-refuse": Slug(
        ExitStatus.PLATFORM,
        "None of the clusters in the job file accepts the job: each is unreachable or rejects "
        "one of its objects. The message has the reason of each. Nothing of the job is left in "
        "the clusters that respond.",
    ),
    **STORAGE_SLUGS,
    "replay-failed": Slug(
        ExitStatus.JOB_FAILED,
        "The repetition of a step did not complete. The message has the reason.",
    ),
    "replicas-differ": Slug(
        ExitStatus.PLATFORM,
        "Parameters that data-parallel ranks hold alike differ (`recovery.check_replicas_every`). "
        "The job rolls back to a step at which they were equal; `holdfast why` says which rank "
        "differs.",
    ),
    "ranks-apart": Slug(
        ExitStatus.USAGE,
        "Ranks of one attempt were at different steps when they were to agree on a snapshot. "
        "run.checkpoint() has to be called on every rank in the same step, and steps() with the "
        "same total.",
    ),
    "layout-invalid": Slug(
        ExitStatus.USAGE,
        "The parallel layout does not fit the number of ranks, or the model: ranks that do not "
        "divide into the dimensions, attention heads that `tp` does not divide, fewer blocks than "
        "pipeline stages, a plan with names that the model does not have. The message has the "
        "numbers and what would fit. It is found before the first step.",
    ),
    "join-invalid": Slug(
        ExitStatus.USAGE,
        "join() was given a backend, a timeout or a device that PyTorch cannot use here, or was "
        "given one after the script had created its process group. Without arguments it uses "
        "NCCL and the GPU of the local rank, or gloo and the CPU where there is no GPU.",
    ),
    "declared-differently": Slug(
        ExitStatus.USAGE,
        "Some ranks call join(in_process=True), and others do not. Their process groups cannot "
        "connect, so the job ends at once; the message names a rank of each kind. All ranks have "
        "to declare the same.",
    ),
    "run-unavailable": Slug(
        ExitStatus.USAGE,
        "A function of holdfast.train was called before join(), or two want the one run of a "
        "process: two calls of join(), join() and an integration, or integrations of two trainers. "
        "Or join() was called in a process that the worker has started.",
    ),
}

"""What to do about each cause, in a sentence or two, as a good troubleshooting guide says it.

Some signals, and one exit status, are sent for one reason only: then that is said.
"""

import signal

FLUSH_FAILED = 120  # exit status of Python where its last output cannot be written
_ALARM = (
    "The script, or a library of it, has set a timer (signal.alarm, setitimer, a test's time-out) "
    "and nothing handles the signal: find who sets it, or handle it."
)
BY_SIGNAL: dict[int, str] = {
    signal.SIGXCPU: "The process exceeded its CPU time limit: raise it (ulimit -t, RLIMIT_CPU), or "
    "find out who sets it.",
    signal.SIGXFSZ: "A file exceeded the file size limit: raise it (ulimit -f, RLIMIT_FSIZE).",
    signal.SIGALRM: _ALARM,
    signal.SIGVTALRM: _ALARM,
    signal.SIGPROF: _ALARM,
    signal.SIGPIPE: "The script writes to a pipe or socket whose other end is closed, and has set "
    "SIGPIPE to its default: Python ignores it and raises BrokenPipeError.",
}
"""Where a signal says more than that somebody has killed the worker."""

ADVICE: dict[str, str] = {
    "worker-killed": "Find out who killed it: the kernel (its log is shown if it can be read), the "
    "engine, another user. If memory was short, lower the batch size, num_workers or "
    "prefetch_factor, or give the node more memory.",
    "forkserver-died": "Look in nodes/NAME/agent.log for the reason. SIGKILL most likely means "
    "that the node ran out of memory: the forkserver holds all of warm.preload_imports.",
    "worker-crashed": "Run the script with PYTHONFAULTHANDLER=1 to see the Python stack of the "
    "crash. A crash on one node only points to its hardware, on changing nodes to a native "
    "extension or to mismatched library versions.",
    "worker-aborted": "Read the last lines of the rank: native code says there why it aborted. For "
    "a CUDA error run once with CUDA_LAUNCH_BLOCKING=1.",
    "collective-mismatch": "All ranks must enter the same collectives with the same sizes in the "
    "same order: look for a branch that only some ranks take, or a last batch that is smaller.",
    "collective-skipped": "Whatever the script saved since then may be wrong: resume from "
    "an earlier checkpoint. Look for a step in which only one rank skips backward() or uses "
    "no_sync(), or for an all_reduce in a branch that only some ranks take.",
    "worker-exception": "Fix the script: the traceback names the line. If it happens only at "
    "certain steps, look at the batch of that step.",
    "environment": "Check that what the message names can be reached from the nodes: the service, "
    "DNS, the proxy, the file system. The job retries automatically, with pauses.",
    "import-error": "Install the module in the environment of the job, or correct PYTHONPATH.",
    "syntax-error": "Correct the file that the message names; compare the Python versions of the "
    "nodes if it is valid on yours.",
    "not-startable": "Check the path of the script or program, that it is on every node, and that "
    "it may be executed.",
    "checkpoint-unusable": "The message says why each checkpoint was refused. Restore the old "
    "model definition, or start again with --fresh (nothing is removed).",
    "checkpoint-in-use": "Stop the other job, or use another name or location for this one. With "
    "checkpoints.take_over: true it continues here, and the other job can no longer save.",
    "declared-differently": "Call join(in_process=True) on all ranks, or on none; recovery.mode: "
    "processes or in_process in the job file makes it the same for all.",
    "worker-exit": "The script ended itself: look for sys.exit or os._exit, and read its last "
    "lines.",
    "exited-early": "All ranks have to do the same number of steps: look for data that ends "
    "earlier on one rank, and for a break that not all ranks reach.",
    "exited-silently": "All ranks have to end together: look for data that ends earlier on one "
    "rank, and for os._exit(0).",
    "nan": "Lower the learning rate, clip gradients, check the data of the named step, use bf16 "
    "instead of fp16. torch.autograd.set_detect_anomaly(True) names the operation. A script that "
    "handles NaN itself needs recovery.on_nan: ignore.",
    "out-of-memory": "Accelerator: lower the micro-batch, use activation checkpointing, or set "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True. Host: fewer loader workers, or more memory.",
    "device-error": "Look up the XID in the kernel log, shown if it can be read. Cordon the "
    "machine if it recurs; a node with two device faults in a day is replaced.",
    "device-lost": "Take the machine out of service: reset the GPU, look at power, seating and "
    "remapped rows, and replace it if it recurs. `holdfast check` on it before it is used.",
    "disk-full": "Free space in the place that the message names, or keep fewer checkpoints "
    "(checkpoints.*.keep).",
    "limit-reached": "Raise the limit (ulimit -n, -f or -u, or that of the container), start fewer "
    "threads, or open fewer files: torch.multiprocessing.set_sharing_strategy('file_system').",
    "port-taken": "Another program listens on the port. No action is needed if it happened once; "
    "otherwise do not set MASTER_PORT by hand.",
    "store-lost": "Find out who killed a process of the agent on the node of rank 0: the kernel's "
    "out-of-memory killer (its log is shown if it can be read), or another user.",
    "peer-lost": "Look at the nodes of the ranks that were lost, and at the network between them: "
    "there is no other evidence.",
    "hang": "See where the named rank was blocked. If it runs a long operation, wrap it in "
    "`with run.section(...)`, or raise recovery.hang_timeout_s or step_timeout_s.",
    "hardware-fault": "The summary names the device and says what to do about the machine: drain "
    "it, then reset, reboot or replace. The job continues on a spare.",
    "corruption": "Run `holdfast check` on the named node before it is used again; where two ranks "
    "differ and neither is named, `holdfast replay NAME --step K` shows which one is wrong.",
    "straggler": "Compare the node with its peers before it is used again: `holdfast check` on it, "
    "`holdfast doctor` for throttling, its processors for other work.",
    "node-lost": "Ask the engine what became of the node: `kubectl describe pod` and its events, "
    "or the kernel log of the machine.",
    "orders-lost": "Keep the journal where it outlives the controller (kubernetes.journal), if "
    "controllers are lost often.",
    "updated": "Nothing: `holdfast status` shows the version and the outcome of each update.",
    "repeated": "Nothing: the evidence of the incident says what the repetition has shown.",
    "diverged": "The job continues with the version in use before the update; compare the two.",
    "node-left": "Nothing: it counts as no failure. A spare makes the hand-over immediate.",
    "resized": "Nothing: `holdfast status` shows the size, the target and the reason.",
    "finished": "Nothing: it had completed its work.",
}


def advice(cause: str, number: int | None = None, exit_code: int | None = None) -> str:
    """On this cause, of a worker that a signal, or a status, has ended; empty where there is none.

    Source for the status: docs.python.org/3/c-api/init.html, `Py_FinalizeEx`.
    """
    if cause == "worker-killed" and number in BY_SIGNAL:
        return BY_SIGNAL[number]
    if cause == "worker-exit" and exit_code == FLUSH_FAILED:
        return (
            "The script has ended, and Python could not write the rest of its output: look for "
            "what closes or replaces sys.stdout or sys.stderr."
        )
    return ADVICE.get(cause, "")

"""Every file below the folder of a job on this machine: name, who writes it, what it is."""

FILES = (
    ("job.json", "`run`", "The validated job, paths made absolute."),
    ("journal.jsonl", "controller", "Every fact and decision, one JSON line each, with checksums."),
    ("journal.state", "controller", "State of the controller at some line, so replay is short."),
    ("journal.v1", "`resume`", "The journal as it was before it got checksums."),
    ("journal-N.jsonl", "`resume`", "The journal of a life of the job that was ended by a stop."),
    ("journal-N.state", "`resume`", "The state beside it."),
    ("journal-N.v1", "`resume`", "What it was before it got checksums."),
    (
        "curve.bin",
        "agent of rank 0; in a cluster the controller",
        "The curve of every step, in a bounded size; see the page.",
    ),
    ("ranks.bin", "controller", "Times of every rank, in a bounded size; see the page."),
    ("lock", "`run`, controller", "Held (`flock`) while a controller lives."),
    ("ray.json", "`run --on ray`", "Address of the Ray cluster that has the nodes."),
    ("token", "`run`", "Secret between controller, agents and command line; mode 0600."),
    (
        "controller.json",
        "controller",
        "Where it listens (`host`, `port`, `pid`) and its clock; mode 0600.",
    ),
    ("controller.log", "`run --detach`", "What a controller without a terminal says."),
    (
        "nodes/NAME/agent.json",
        "agent",
        "`node`, `name`, `pid`, `started` of the agent; `metrics`: port.",
    ),
    ("nodes/NAME/datasets/NAME", "agent", "Link to a data set in the cache of the machine."),
    ("nodes/NAME/agent.log", "agent", "The agent's own words and those of its processes."),
    ("nodes/NAME/warm-L.log", "agent", "Last output of a warm worker that died without a rank."),
    ("logs/attempt-A/rank-R.log", "agent", "Output of a worker."),
    ("logs/attempt-A/rank-R.log.1", "agent", "The part before, once `logs.max_bytes` is reached."),
    ("logs/attempt-A/times-rank-R.log", "agent", "When which part of it was written."),
    ("logs/attempt-A/times-rank-R.log.1", "agent", "The same of the part before."),
    ("logs/attempt-A/rank-R.error.json", "worker", "What a function under torch's `@record` left."),
    ("code/S.tar.gz", "`run`, `update`", "The code of a version, as a bundle; S is its SHA-256."),
    ("code/S/...", "`update`, agent", "Its files."),
    ("code/started", "`run`", "The S of the code that the job was started with, if it is small."),
    ("code/first", "`update`", "The same, once an update has found that code edited."),
    ("tracking.json", "agent of rank 0", "How far each experiment tracker has been told."),
    ("tracking.lock", "agent of rank 0", "Held (`flock`) by the process that tells them."),
    (
        "tensorboard/JOB/...",
        "agent of rank 0",
        "TensorBoard's files, where there is no shared tier.",
    ),
    ("notified.json", "controller", "What the receivers of notifications have been told of."),
    ("telemetry.json", "controller", "What a receiver of OpenTelemetry has taken."),
    (
        "metrics.jsonl",
        "agent of rank 0",
        "One JSON object for each step of rank 0: `attempt`, `step` (completed), `at` (seconds "
        "since the epoch), `loss`, `grad_norm`, `tokens`, and `metrics` (name: value) where the "
        "script gave names of its own. Not logged, NaN and infinite are null; `not_finite` (name: "
        "`nan`, `inf` or `-inf`) has those that were logged. A step that was "
        "redone has a line for each attempt; the last one counts.",
    ),
    ("metrics.jsonl.1", "agent of rank 0", "The part before, once that file has 128 MiB."),
)

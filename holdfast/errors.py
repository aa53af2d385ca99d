"""Errors a person sees: what is wrong, why, and a command that helps.

Every error has a slug listed in `SLUGS`; `holdfast explain SLUG` prints its longer text and the
command line turns its exit status into the process's. One table, so that documentation, tests and
code cannot drift apart.
"""

import re
from enum import IntEnum
from typing import NamedTuple


class ExitStatus(IntEnum):
    """Exit statuses of every `holdfast` command."""

    OK = 0
    JOB_FAILED = 1
    USAGE = 2
    PLATFORM = 3
    NOT_FOUND = 4
    GAVE_UP = 5
    INTERRUPTED = 130


class Slug(NamedTuple):
    """One kind of error: the exit status it causes and what `holdfast explain` says about it."""

    status: ExitStatus
    explanation: str


SLUGS: dict[str, Slug] = {
    "job-invalid": Slug(
        ExitStatus.USAGE,
        "The job description has keys that are unknown, missing or out of range. Every problem is "
        "listed with its path. `holdfast schema` prints what is accepted; nothing was started.",
    ),
    "job-file-unreadable": Slug(
        ExitStatus.USAGE,
        "The job file does not exist, cannot be read, or is not YAML. Nothing was started.",
    ),
    "usage": Slug(
        ExitStatus.USAGE,
        "The command line does not fit: an unknown option, a missing value, or options that "
        "exclude each other. `holdfast COMMAND --help` lists what is accepted.",
    ),
    "unknown-slug": Slug(
        ExitStatus.NOT_FOUND,
        "`holdfast explain` knows only the slugs that errors print in brackets. Without an "
        "argument it lists them all.",
    ),
    "job-not-found": Slug(
        ExitStatus.NOT_FOUND,
        "No job of that name has a folder below HOLDFAST_HOME (default ~/.holdfast). Another "
        "HOLDFAST_HOME, another user or a removed folder are the usual reasons.",
    ),
    "job-exists": Slug(
        ExitStatus.USAGE,
        "A job of this name has already been run and its journal is kept. Pick another name with "
        "--name, or remove the old record with `holdfast run --replace`.",
    ),
    "job-running": Slug(
        ExitStatus.USAGE,
        "A controller holds this job's lock: one job has one controller. `holdfast watch NAME` "
        "shows it, `holdfast stop NAME` ends it.",
    ),
    "limit-too-small": Slug(
        ExitStatus.PLATFORM,
        "A limit that this shell sets for each process (`ulimit -a`) is too small for the job: the "
        "number of open files, or the size of a file, which also bounds the memory that snapshots "
        "are kept in. Nothing was started.",
    ),
    "process-stuck": Slug(
        ExitStatus.PLATFORM,
        "A process of the job cannot be killed: the kernel does not let go of it, usually because "
        "of a file system or a device that does not answer. Until it is gone nothing of the job is "
        "removed. The message names the process and where it waits; a hung mount has to come back "
        "or be unmounted, a hung device needs a reset or the machine a reboot.",
    ),
    "job-ended": Slug(
        ExitStatus.USAGE,
        "The job has already ended, so there is nothing to resume: its nodes are gone and memory "
        "snapshots go with them. Run it again under another name.",
    ),
    "journal-corrupt": Slug(
        ExitStatus.PLATFORM,
        "A line of the journal is not what was written: its checksum is wrong, or lines are "
        "missing or in another order. A last line without an end is normal after a crash and is "
        "dropped. Anything else is refused by `resume`, because decisions replayed from it would "
        "not be those that were taken; commands that only read show what precedes the damage and "
        "end with this status.",
    ),
    "journal-state-damaged": Slug(
        ExitStatus.PLATFORM,
        "The saved state beside the journal, `journal.state`, cannot be used. Nothing is lost by "
        "it: the journal is replayed from its first line, which takes longer. It is written anew "
        "while the job runs.",
    ),
    "journal-diverges": Slug(
        ExitStatus.PLATFORM,
        "Replayed by this version of Holdfast, the journal does not lead to what was ordered: to "
        "another attempt, or another end of the job. To go on would give one attempt's number to "
        "two. The version that wrote the journal can go on with it.",
    ),
    "journal-version": Slug(
        ExitStatus.PLATFORM,
        "The journal was written by a version of Holdfast whose format this one does not read.",
    ),
    "record-damaged": Slug(
        ExitStatus.PLATFORM,
        "A file in the folder of a job is not what Holdfast has written there. The message names "
        "it, and what it can be made from again. Nothing was started.",
    ),
    "record-stale": Slug(
        ExitStatus.PLATFORM,
        "What is told of a job in a cluster is what its controller published last, and that was "
        "longer ago than it should be. Either no controller runs, or it cannot reach the API "
        "server. Training does not depend on either. The command did what it could.",
    ),
    "record-incomplete": Slug(
        ExitStatus.PLATFORM,
        "A part of what a controller has published about its job is missing: a ConfigMap "
        "`NAME-record-N` was deleted or changed by somebody else, or there are more incidents than "
        "these ConfigMaps have room for. What is there was shown.",
    ),
    "controller-silent": Slug(
        ExitStatus.PLATFORM,
        "A controller holds the job's lock, but cannot be asked: it has only just begun, is "
        "stopped or stuck, or its `controller.json` or `token` is damaged. Nothing was ended.",
    ),
    "home-unwritable": Slug(
        ExitStatus.PLATFORM,
        "A file or folder below HOLDFAST_HOME must not be used: its permissions, or a mount that "
        "is read-only, do not allow it.",
    ),
    "disk-full": Slug(
        ExitStatus.PLATFORM,
        "The disk with the files of the job is full, has no inodes left, or a quota is used up.",
    ),
    "output-unwritable": Slug(
        ExitStatus.PLATFORM,
        "Standard output takes nothing: the disk with the file it goes to is full, or the terminal "
        "is gone. What the command did beside printing is done.",
    ),
    "disk-failing": Slug(
        ExitStatus.PLATFORM,
        "The disk with the files of the job, or the server behind it, answers with an error of "
        "input or output. The kernel's log says more.",
    ),
    "path-unusable": Slug(
        ExitStatus.PLATFORM,
        "A path is not what it should be: a file where a folder should be or the other way round, "
        "a pipe, symbolic links in a circle, a name that is too long, a file that is far too "
        "large.",
    ),
    "too-many-open-files": Slug(
        ExitStatus.PLATFORM,
        "This process, or the whole machine, may not open more files. `ulimit -n` shows how many "
        "a process may.",
    ),
    "system-error": Slug(
        ExitStatus.PLATFORM,
        "The operating system refused something, for a reason that is none of the usual ones. Its "
        "own words are in the message.",
    ),
    "controller-start-failed": Slug(
        ExitStatus.PLATFORM,
        "The controller of a detached job ended, or did not answer in time, before the job was "
        "under way. Its log is named in the message; `holdfast stop NAME` removes what is left.",
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
        "HOLDFAST_TLS names a folder whose certificate, key or authority cannot be read. With it "
        "set nothing is sent in plain text, so nothing was started.",
    ),
    "code-unusable": Slug(
        ExitStatus.USAGE,
        "The folder that `code` names cannot be shipped to the nodes: it is not there, leads "
        "outside by a link, or is larger than what ConfigMaps are for (32 MB compressed, 200 MB "
        "in all). Nothing was submitted.",
    ),
    "platform-unsupported": Slug(
        ExitStatus.PLATFORM,
        "Holdfast needs Linux: it relies on memfd, PR_SET_PDEATHSIG and process groups.",
    ),
    "not-tracked": Slug(
        ExitStatus.USAGE,
        "Something given to run.track() cannot be snapshotted: it needs state_dict() and "
        "load_state_dict(), and its state may hold only tensors, numbers, strings, bytes, lists, "
        "tuples, sets and dicts of these.",
    ),
    "snapshot-too-large": Slug(
        ExitStatus.PLATFORM,
        "Two copies of the tracked state do not fit the memory that this machine has free. The "
        "message shows the arithmetic.",
    ),
    "layout-unknown": Slug(
        ExitStatus.JOB_FAILED,
        "State of another number of ranks was found, but it does not say whether what several of "
        "its ranks have under one name are copies or parts of one tensor. Models wrapped by DDP, "
        "fully_shard or parallelize_module say so; plain modules on several ranks do not.",
    ),
    "snapshot-unreadable": Slug(
        ExitStatus.PLATFORM,
        "Parts of a memory snapshot arrived damaged again and again while ranks handed them to "
        "each other, although their holders had verified them. Memory or network is at fault.",
    ),
    "loader-empty": Slug(
        ExitStatus.USAGE,
        "The data loader has nothing to give: the dataset is smaller than one batch of all ranks, "
        "or an iterable ended twice without yielding anything.",
    ),
    "scenario-not-found": Slug(
        ExitStatus.USAGE,
        "No scenario of that name comes with Holdfast and no file has that path. "
        "docs/guides/capacity.md shows how to write one.",
    ),
    "scenario-unreadable": Slug(
        ExitStatus.USAGE,
        "A scenario or a failure mix cannot be read, or is not YAML. Nothing was run.",
    ),
    "scenario-invalid": Slug(
        ExitStatus.USAGE,
        "A scenario or a failure mix has keys that are unknown or missing, or numbers that are "
        "impossible. Every problem is listed with its path; nothing was run.",
    ),
    "plot-unavailable": Slug(
        ExitStatus.USAGE,
        "Plots need matplotlib, which comes with the extra `plot`, and a file name that ends with "
        ".png or .svg in a folder that can be written.",
    ),
    "simulation-killed": Slug(
        ExitStatus.PLATFORM,
        "A process in which worlds are simulated was killed from outside, most often by the kernel "
        "for want of memory. The worlds it had are lost; each can be run again by its seed.",
    ),
    "manifest-unreadable": Slug(
        ExitStatus.USAGE,
        "A file with Kubernetes manifests does not exist, cannot be read, is not YAML, gives a key "
        "twice, or holds no objects. Nothing was looked at.",
    ),
    "image-missing": Slug(
        ExitStatus.USAGE,
        "A job on Kubernetes runs in a container image, and the job file names none. Nothing was "
        "rendered.",
    ),
    "engine-unfit": Slug(
        ExitStatus.USAGE,
        "The engine, in this mode, cannot honour a setting of the job file. The message names the "
        "engines that can; docs/reference/engines.md has the whole table. Nothing is dropped "
        "silently, so nothing was rendered.",
    ),
    "setting-idle": Slug(
        ExitStatus.USAGE,
        "A setting would have no effect, because another one that it needs is missing. It is "
        "refused rather than dropped; nothing was rendered.",
    ),
    "settings-conflict": Slug(
        ExitStatus.USAGE,
        "Two settings contradict each other, or one thing would be set from two places. Nothing "
        "was rendered.",
    ),
    "size-impossible": Slug(
        ExitStatus.USAGE,
        "A size in the job file cannot be: the message shows the arithmetic. Nothing was rendered.",
    ),
    "name-unfit": Slug(
        ExitStatus.USAGE,
        "A name that the engine makes from the job's would be too long or begin with a digit, and "
        "Kubernetes would refuse or cut it. Nothing was rendered.",
    ),
    "secret-in-sight": Slug(
        ExitStatus.USAGE,
        "Something in the job file looks like a password, a key or a token. Whoever may read pods "
        "would read it; a Kubernetes Secret and the section `secrets` keep it out of sight.",
    ),
    "kubernetes-too-old": Slug(
        ExitStatus.USAGE,
        "A setting needs a newer version of Kubernetes than the manifests were asked for with "
        "--kubernetes-version. Nothing was rendered.",
    ),
    "cluster-only": Slug(
        ExitStatus.USAGE,
        "The job is of a kind that only an engine on Kubernetes can run: its framework has an "
        "operator there, or it is a sweep. `holdfast render` writes its manifests.",
    ),
    "kubeconfig-unusable": Slug(
        ExitStatus.USAGE,
        "The kubeconfig, or the account of the pod, cannot be read, or gives no credentials that "
        "the cluster takes. The message names the file or the plugin; nothing was changed there.",
    ),
    "context-unknown": Slug(
        ExitStatus.USAGE,
        "The kubeconfig has no context of that name. The message lists those it has; nothing was "
        "sent to any cluster.",
    ),
    "cluster-unreachable": Slug(
        ExitStatus.PLATFORM,
        "The API server of the cluster does not answer: an address that is wrong or gone, a VPN "
        "that is down, or a certificate that is not trusted. Jobs that run there run on.",
    ),
    "kubernetes-missing": Slug(
        ExitStatus.PLATFORM,
        "Talking to a cluster needs a Kubernetes client, which the base package does not bring "
        "along. It comes with the extra `kubernetes`.",
    ),
    "engine-missing": Slug(
        ExitStatus.USAGE,
        "The cluster does not serve a kind of object that the job needs: the operator of the "
        "engine, or of something else that the job file asks for, is not installed there, or in "
        "another version. Nothing of the job was left behind.",
    ),
    "namespace-missing": Slug(
        ExitStatus.USAGE,
        "The namespace does not exist in this cluster, or is being deleted. Nothing was made.",
    ),
    "name-taken": Slug(
        ExitStatus.USAGE,
        "An object that the job would make exists already and does not belong to a job of this "
        "name. It was left as it is; nothing was made.",
    ),
    "rights-missing": Slug(
        ExitStatus.PLATFORM,
        "The cluster does not allow you, or the account of a pod, to do what the message names. "
        "`holdfast doctor --on kubernetes job.yaml` lists all rights that the job needs.",
    ),
    "quota-exceeded": Slug(
        ExitStatus.PLATFORM,
        "A ResourceQuota or a LimitRange of the namespace does not leave room for the job. It "
        "starts as soon as there is room, if it has been accepted at all.",
    ),
    "admission-refused": Slug(
        ExitStatus.PLATFORM,
        "A rule of the cluster refused an object of the job: a webhook, an admission policy or a "
        "pod security standard.",
    ),
    "webhook-down": Slug(
        ExitStatus.PLATFORM,
        "A webhook that the cluster asks about this kind of object does not answer, so nothing of "
        "that kind can be made, changed or, with a finalizer, deleted. That is no rule: it passes "
        "once the controller that serves the webhook (Kueue's, Trainer's, JobSet's) runs again.",
    ),
    "manifest-refused": Slug(
        ExitStatus.USAGE,
        "The API server found something wrong in an object of the job: a field that it does not "
        "know, which points to another version of the engine, or a change of what cannot change.",
    ),
    "cluster-refused": Slug(
        ExitStatus.PLATFORM,
        "The API server answered with an error that is none of the known ones. Its own words are "
        "in the message; what was already asked of the cluster stands.",
    ),
    "image-unavailable": Slug(
        ExitStatus.PLATFORM,
        "Machines of the cluster cannot pull the image of the job: a name or tag that does not "
        "exist, or a registry that wants credentials (image.pull_secrets).",
    ),
    "unschedulable": Slug(
        ExitStatus.PLATFORM,
        "The scheduler finds no machine for some pods of the job. The message says how many, and "
        "what the machines lack. The job starts when there is room.",
    ),
    "claim-pending": Slug(
        ExitStatus.PLATFORM,
        "A PersistentVolumeClaim that the job mounts does not exist or has no volume yet: a "
        "storage class that is missing, that cannot do the access mode, or a provisioner in need.",
    ),
    "pod-unstartable": Slug(
        ExitStatus.PLATFORM,
        "A machine cannot start a container of the job: a Secret or ConfigMap that it mounts does "
        "not exist, or its program cannot be run. It is tried again and again.",
    ),
    "not-managed": Slug(
        ExitStatus.USAGE,
        "The job runs in plain mode: the engine's stock manifests, without Holdfast's controller. "
        "So there is no record of it, and nobody who could be asked.",
    ),
    "machine-not-cordoned": Slug(
        ExitStatus.NOT_FOUND,
        "There is no such machine in the cluster, or Holdfast has not cordoned it: there is "
        "nothing to lift. A taint of others is theirs to take off.",
    ),
    "pod-incomplete": Slug(
        ExitStatus.USAGE,
        "`holdfast agent` found no sound description of its pod in the environment. Manifests of "
        "`holdfast render` and `holdfast run` set all of it; an overlay or a webhook may not take "
        "anything away.",
    ),
    "port-unusable": Slug(
        ExitStatus.PLATFORM,
        "The port on which an agent answers probes is taken or cannot be used: with the host's "
        "network, machines share their ports with everything that runs there.",
    ),
    "clusters-missing": Slug(
        ExitStatus.USAGE,
        "`holdfast federate` runs a managed job in the first of several clusters that admits it. "
        "The job file names none under `clusters`, or asks for plain mode or a schedule. Nothing "
        "was started.",
    ),
    "clusters-refuse": Slug(
        ExitStatus.PLATFORM,
        "None of the clusters that the job file names takes the job: each cannot be reached, or "
        "refuses one of its objects. The message has the reason of each. Nothing of the job is "
        "left in those that answer.",
    ),
    "storage-place": Slug(
        ExitStatus.USAGE,
        "A place for checkpoints is neither a folder nor a URL that can be used: an unknown kind "
        "of URL, one whose client is not installed, or a path that cannot be one.",
    ),
    "storage-full": Slug(
        ExitStatus.PLATFORM,
        "The place for checkpoints has no room left, or a quota is used up. Training goes on, the "
        "last committed checkpoint stays, and saving is tried again.",
    ),
    "storage-denied": Slug(
        ExitStatus.PLATFORM,
        "The place for checkpoints refuses access: permissions of a folder, a read-only mount, or "
        "credentials of an object store that are missing, wrong or expired.",
    ),
    "storage-unreachable": Slug(
        ExitStatus.PLATFORM,
        "The place for checkpoints does not answer, or answers with errors, also after several "
        "tries. Training goes on, the last committed checkpoint stays, and saving is tried again.",
    ),
    "storage-ahead": Slug(
        ExitStatus.PLATFORM,
        "The place for checkpoints knows a later attempt than the one that begins, which got its "
        "number while the place did not answer. What it saved would not count, so the job starts "
        "again with the next free number.",
    ),
    "storage-missing": Slug(
        ExitStatus.NOT_FOUND,
        "A file in the place for checkpoints is not there, or ends too early: it was removed, the "
        "place or the bucket is another one, or it was cut off.",
    ),
    "checkpoint-damaged": Slug(
        ExitStatus.JOB_FAILED,
        "Something of a checkpoint is not what was written: a checksum does not match, or a file "
        "belongs to another checkpoint. It is not used; an older one or another tier is.",
    ),
    "checkpoint-unusable": Slug(
        ExitStatus.JOB_FAILED,
        "There are checkpoints to go on from, and none can be used: the newest is of another "
        "model, all are damaged, or the groups of an optimizer cannot be made again. The job ends "
        "and nothing is removed. `--fresh` begins anew on purpose and removes nothing either.",
    ),
    "checkpoint-not-found": Slug(
        ExitStatus.NOT_FOUND,
        "There is no committed checkpoint of that step in this place. One that is being written, "
        "or was given up half-way, does not count.",
    ),
    "checkpoint-incomplete": Slug(
        ExitStatus.PLATFORM,
        "A checkpoint cannot be committed or copied, because parts of some ranks are missing, "
        "differ in what they belong to, or leave out something that nobody else has saved.",
    ),
    "checkpoint-fenced": Slug(
        ExitStatus.PLATFORM,
        "An older attempt wanted to save, but a newer one has begun in this place. What the older "
        "one has trained is no longer part of the job, so it may not be committed.",
    ),
    "export-unavailable": Slug(
        ExitStatus.USAGE,
        "A checkpoint cannot be exported in that form: torch is not installed (it comes with the "
        "extra `train`, or with the image of the job), safetensors has no such type of tensor, or "
        "a DCP directory was to be written to a URL.",
    ),
    "snapshot-changed": Slug(
        ExitStatus.PLATFORM,
        "A memory snapshot was replaced, or does not match its seal, while it was being saved. "
        "Nothing of it was committed. Once is a matter of timing, often is bad memory.",
    ),
    "no-durable-tier": Slug(
        ExitStatus.USAGE,
        "run.checkpoint() was called in a job without any durable tier: name one under "
        "`checkpoints` in the job file.",
    ),
    "ranks-apart": Slug(
        ExitStatus.USAGE,
        "Ranks of one attempt were at different steps when they were to agree on a snapshot. "
        "run.checkpoint() has to be called on every rank in the same step, and steps() with the "
        "same total.",
    ),
    "join-invalid": Slug(
        ExitStatus.USAGE,
        "join() was given a backend, a timeout or a device that PyTorch cannot use here, or that "
        "came too late because the script had made its process group before. Without arguments it "
        "takes NCCL and the GPU of the local rank, or gloo and the CPU where there is no GPU.",
    ),
    "run-unavailable": Slug(
        ExitStatus.USAGE,
        "holdfast.train was asked for something that only works after join(), or join() was "
        "called twice in one process.",
    ),
}


# What a terminal obeys or cannot show: control characters but for tab and line feed, marks that
# turn the direction of writing, halves of surrogate pairs (bytes of an argument that are no UTF-8).
UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
WHAT_MAX = 600
WHY_MAX = 6_000
SHOWN_MAX = 80


def visible(text: str) -> str:
    """`text` with an escape, as in `\\x1b`, for every character that is not one to look at."""
    return UNSEEN.sub(lambda found: ascii(found[0])[1:-1], text)


def clipped(text: str, limit: int) -> str:
    """`text`, of which the middle is left out if it is longer than `limit`."""
    if len(text) <= limit:
        return text
    note = f" ... {len(text):,} characters ... "
    kept = max(limit - len(note), 2)
    return text[: kept - kept // 3] + note + text[len(text) - kept // 3 :]


def shown(value: object) -> str:
    """A value that was given, in quotes and short enough to stand in a message."""
    return visible(clipped(repr(value) if isinstance(value, str) else str(value), SHOWN_MAX))


class Error(Exception):
    """A problem to be shown to a person as `error[slug]: what`, `why: ...`, `help: ...`.

    `help` should be a command that works when pasted, or one plain sentence. Each part is made
    visible and kept to a length, for it quotes what was given, which may be anything.
    """

    def __init__(self, slug: str, what: str, *, why: str, help: str) -> None:  # noqa: A002
        if slug not in SLUGS:
            raise KeyError(f"error slug {slug!r} is not in SLUGS")
        self.slug = slug
        self.what = _part(what.replace("\n", "\\n"), WHAT_MAX)
        self.why = _part(why, WHY_MAX)
        self.help = _part(help, WHAT_MAX)
        super().__init__(self.what)

    @property
    def status(self) -> ExitStatus:
        """The exit status this error ends a command with."""
        return SLUGS[self.slug].status

    def __str__(self) -> str:
        return f"error[{self.slug}]: {self.what}\n  why: {self.why}\n  help: {self.help}"

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (self.slug, self.what, self.why, self.help))


def _part(text: str, limit: int) -> str:
    return clipped(visible(text), limit)


def _rebuild(slug: str, what: str, why: str, help_: str) -> Error:
    return Error(slug, what, why=why, help=help_)

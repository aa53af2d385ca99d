"""The kinds of errors about checkpoints and data sets, and where they are kept."""

from holdfast.exit_status import ExitStatus, Slug

STORAGE_SLUGS: dict[str, Slug] = {
    "storage-place": Slug(
        ExitStatus.USAGE,
        "A checkpoint location is neither a folder nor a supported URL: the URL scheme is "
        "unknown, its client is not installed, or the path is invalid.",
    ),
    "storage-full": Slug(
        ExitStatus.PLATFORM,
        "The checkpoint location has no space left, or a quota is exceeded. Training continues, "
        "the last committed checkpoint is kept, and saving is retried.",
    ),
    "storage-denied": Slug(
        ExitStatus.PLATFORM,
        "The checkpoint location denies access: folder permissions, a read-only mount, or object "
        "store credentials that are missing, wrong or expired.",
    ),
    "storage-unreachable": Slug(
        ExitStatus.PLATFORM,
        "The checkpoint location does not respond, or returns errors after several retries. "
        "Training continues, the last committed checkpoint is kept, and saving is retried.",
    ),
    "storage-ahead": Slug(
        ExitStatus.PLATFORM,
        "The checkpoint location contains a later attempt than the one that starts, which was "
        "numbered while the location did not respond. Its checkpoints would not count, so the "
        "job restarts with the next free number.",
    ),
    "storage-missing": Slug(
        ExitStatus.NOT_FOUND,
        "A file in the checkpoint location is missing or truncated: it was removed, the location "
        "or bucket has changed, or writing it was interrupted.",
    ),
    "checkpoint-damaged": Slug(
        ExitStatus.JOB_FAILED,
        "Part of a checkpoint is corrupt: a checksum does not match, or a file belongs to "
        "another checkpoint. It is not used; an older checkpoint or another tier is used instead.",
    ),
    "checkpoint-unusable": Slug(
        ExitStatus.JOB_FAILED,
        "Checkpoints exist, but none can be restored: the newest is of a different model, all "
        "are damaged, or the parameter groups of an optimizer cannot be recreated. The job ends "
        "and nothing is removed. `--fresh` starts from step 0 and does not remove them either.",
    ),
    "checkpoint-not-found": Slug(
        ExitStatus.NOT_FOUND,
        "There is no committed checkpoint of that step in this location. A checkpoint that is "
        "being written, or whose writing was interrupted, does not count.",
    ),
    "checkpoint-incomplete": Slug(
        ExitStatus.PLATFORM,
        "A checkpoint cannot be committed or copied, because parts of some ranks are missing, "
        "belong to different checkpoints, or omit something that no other rank has saved.",
    ),
    "checkpoint-fenced": Slug(
        ExitStatus.PLATFORM,
        "An older attempt tried to save, but a newer one has started in this location. The steps "
        "of the older attempt are no longer part of the job, so they must not be committed. Or "
        "two jobs with the same name were started at the same time: only one of them may save.",
    ),
    "checkpoint-in-use": Slug(
        ExitStatus.PLATFORM,
        "Another job of the same name is running and saves its checkpoints in the same location. "
        "This one would continue from them, and the other could no longer save: the job ends "
        "before it trains. `checkpoints.take_over: true` in the job file overrides this. A job "
        "that has ended does not block it; one that was killed stops blocking it within 30 s.",
    ),
    "export-unavailable": Slug(
        ExitStatus.USAGE,
        "A checkpoint cannot be exported in that format: torch is not installed (the extra "
        "`train` or the image of the job includes it), safetensors does not support a dtype, or "
        "a DCP directory was requested at a URL.",
    ),
    "dataset-unavailable": Slug(
        ExitStatus.PLATFORM,
        "The source of a data set cannot be read: it does not respond, denies access, or there is "
        "nothing. Fetching is retried, and workers start once the data set is there, or end when "
        "`recovery.node_wait_s` has passed without progress. A copy in the cache is used meanwhile "
        "if it is complete.",
    ),
    "dataset-mismatch": Slug(
        ExitStatus.PLATFORM,
        "The files of a data set are not those that its manifest, their ETags or `sha256` in the "
        "job file promise, or they changed while they were read. What was fetched is discarded.",
    ),
    "dataset-no-room": Slug(
        ExitStatus.PLATFORM,
        "A data set does not fit into the cache of a machine, below `cache.size` and on its disk, "
        "even without everything that no live job uses. Data sets of live jobs are never removed.",
    ),
    "dataset-unknown": Slug(
        ExitStatus.USAGE,
        "The script asks for a data set that the job file does not name under `datasets`.",
    ),
    "snapshot-changed": Slug(
        ExitStatus.PLATFORM,
        "A memory snapshot was replaced, or its checksum changed, while it was being saved. "
        "Nothing of it was committed. A single occurrence is a matter of timing; repeated ones "
        "indicate faulty memory.",
    ),
    "no-durable-tier": Slug(
        ExitStatus.USAGE,
        "run.checkpoint() was called in a job without a durable tier. Configure one under "
        "`checkpoints` in the job file.",
    ),
}

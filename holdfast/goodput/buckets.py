"""The names under which time is booked: every millisecond of a job is in exactly one.

One table, printed by the documentation as it stands. It is the whole vocabulary; a bucket whose
detector does not exist yet stays at zero, so that names and shapes never change under a reader.
"""

from enum import StrEnum


class Bucket(StrEnum):
    """Where a stretch of wall time went."""

    PRODUCTIVE = "productive"
    REPLAY = "replay"
    DETECT = "detect"
    TEARDOWN = "teardown"
    SCHEDULE = "schedule"
    START = "start"
    RENDEZVOUS = "rendezvous"
    RESTORE_MEMORY = "restore_memory"
    RESTORE_PEER = "restore_peer"
    RESTORE_DISK = "restore_disk"
    RESTORE_REMOTE = "restore_remote"
    FIRST_STEP = "first_step"
    DATA_WAIT = "data_wait"
    CHECKPOINT_STALL = "checkpoint_stall"
    EVALUATION = "evaluation"
    HANG = "hang"
    DEGRADED = "degraded"
    PAUSED = "paused"
    OTHER = "other"


MEANING: dict[Bucket, str] = {
    Bucket.PRODUCTIVE: "Steps that no earlier attempt had completed, without stalls.",
    Bucket.REPLAY: "Repeated work: steps redone after a restore, and the interrupted step.",
    Bucket.DETECT: "From the fault until the order to stop the attempt.",
    Bucket.TEARDOWN: "From the order to stop until no process of the attempt is left on any node.",
    Bucket.SCHEDULE: "Waiting for nodes, or for the decision to start an attempt.",
    Bucket.START: "From the order to start until every rank has called join().",
    Bucket.RENDEZVOUS: "Until every rank is in the process group.",
    Bucket.RESTORE_MEMORY: "Wrapping the model and restoring its state from memory.",
    Bucket.RESTORE_PEER: "Restoring state fetched from another node's memory.",
    Bucket.RESTORE_DISK: "Restoring state from a local disk.",
    Bucket.RESTORE_REMOTE: "Restoring state from shared or archive storage.",
    Bucket.FIRST_STEP: "The first step of an attempt, including lazy initialization.",
    Bucket.DATA_WAIT: "Training waited for its next batch.",
    Bucket.CHECKPOINT_STALL: "Training waited for a snapshot or checkpoint.",
    Bucket.EVALUATION: "Evaluation between training steps.",
    Bucket.HANG: "No rank made progress although all were alive.",
    Bucket.DEGRADED: "The fraction lost to slow ranks or links, or to missing nodes.",
    Bucket.PAUSED: "Nothing ran: all processes of a node were stopped, or its machine slept.",
    Bucket.OTHER: "After the last step, until the last worker exited.",
}

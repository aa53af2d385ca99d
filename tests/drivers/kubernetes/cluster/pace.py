"""How fast time goes for the controllers: their delays are Kubernetes' own, times `scale`."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Pace:
    """Delays of Kubernetes in seconds. What pods ask for themselves (grace) is never scaled."""

    scale: float = 0.01
    node_grace_s: float = 50.0  # from the last word of a machine to NotReady
    backoff_s: float = 10.0  # of a Job and of a crashing container; doubles
    job_backoff_max_s: float = 600.0
    crash_backoff_max_s: float = 300.0
    names_s: float = 5.0  # until DNS knows what has changed
    dial_s: float = 30.0  # until the server gives up a kubelet that does not answer
    orphaned_s: float = 40.0  # until pods of a machine that was removed are dropped

    def s(self, seconds: float) -> float:
        """So many seconds of Kubernetes in real seconds."""
        return seconds * self.scale

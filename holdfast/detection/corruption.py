"""Replicas that differ, reduced to one fact: which ranks have the same, and who is in the minority.

Ranks compare digests of their parameters themselves (`train/replicas.py`) and all know at the same
step that some differ; each then tells its own digest. The fact is told once every rank that should
have the same has told its own, or after a while without some of them. More than half of all these
ranks with the same digest are a majority, and whoever has told another one differs from it; of two
ranks neither does.
"""

from collections.abc import Mapping

from holdfast.digests import ReplicaDigest
from holdfast.events import ReplicasDiffer, in_rows
from holdfast.messages import Report

PATIENCE_S = 2.0  # for the digests of all ranks, from the first on; reports come within a second


class ReplicasReducer:
    """The digests of the newest attempt."""

    def __init__(self) -> None:
        self._attempt = 0
        self._told = False
        self._since: float | None = None
        self._digests: dict[int, ReplicaDigest] = {}  # by rank
        self._agreed_at: dict[int, float] = {}  # likewise: when all were last the same

    def observe(self, report: Report, now: float) -> list[ReplicasDiffer]:
        """Take in one node's report; reports of other attempts than the newest are ignored."""
        if report.attempt > self._attempt:
            self._attempt, self._told, self._since, self._digests = report.attempt, False, None, {}
        if report.attempt < self._attempt or self._told:
            return []
        for worker in report.workers:
            if worker.replica is not None:
                self._digests[worker.rank] = worker.replica
                self._agreed_at[worker.rank] = now - worker.replica.ago_s
        if not self._digests:
            return []
        self._since = now if self._since is None else self._since
        return self._tell(now, late=now >= self._since + PATIENCE_S)

    def _tell(self, now: float, *, late: bool) -> list[ReplicasDiffer]:
        """Of groups that differ, the first that is complete, or has come furthest."""
        groups: dict[int, dict[int, ReplicaDigest]] = {}
        for rank, one in sorted(self._digests.items()):
            groups.setdefault(one.first, {})[rank] = one
        whole = [group for group in groups.values() if len(group) == _count(group)]
        if not whole and not late:
            return []
        self._told = True
        group = (whole or [max(groups.values(), key=len)])[0]
        ago_s = now - min(self._agreed_at[rank] for rank in group)
        return [_differ(self._attempt, group, max(0.0, ago_s))]


def _differ(attempt: int, group: Mapping[int, ReplicaDigest], ago_s: float) -> ReplicasDiffer:
    by_digest: dict[int, list[int]] = {}
    for rank, one in group.items():
        by_digest.setdefault(one.digest, []).append(rank)
    alike = sorted(by_digest.values(), key=lambda ranks: (-len(ranks), ranks))
    majority = 2 * len(alike[0]) > _count(group)
    minority = [rank for ranks in alike[1:] for rank in ranks] if majority else []
    one = next(iter(group.values()))
    return ReplicasDiffer(
        attempt=attempt,
        step=one.step,
        agreed=one.agreed,
        compared=one.count,
        alike=tuple(map(in_rows, alike)),
        ranks=in_rows(minority),
        ago_s=ago_s,
    )


def _count(group: Mapping[int, ReplicaDigest]) -> int:
    return next(iter(group.values())).count

"""Referees of what is gone on from: the newest that is whole, no part missing, each sample once."""

from collections.abc import Sequence

from holdfast.checkpoint.choose import Holding, RestorePlan
from holdfast.checkpoint.key import Key
from holdfast.simulation.memory import BATCH, NodeMemory, ResumedFrom


class Resumption:
    """Training goes on from the newest snapshot that is whole for every rank, and from no other."""

    def resumed(
        self, attempt: int, plan: RestorePlan | None, held: Sequence[Holding], distance: int
    ) -> str:
        """An attempt goes on from `plan`; `held` is what each rank really has."""
        best = max((k for k in _keys(held) if _whole(k, held, distance)), default=None)
        found = (plan.key.step, plan.key.attempt) if plan is not None else None
        if found != best:
            return f"attempt {attempt} resumes from {found}, not from {best} (step, attempt)"
        return _lacking(attempt, plan, held, distance) if plan is not None else ""


class WholeSnapshots:
    """A snapshot is gone on from only if every part that anybody has written of it is there, and it
    is the newest of which that is true."""

    def resumed(
        self, attempt: int, found: ResumedFrom | None, memories: Sequence[NodeMemory]
    ) -> str:
        """An attempt goes on from this; `memories` is what its ranks really hold."""
        own: dict[tuple[int, int, int], set[int]] = {}
        common: set[tuple[int, int, int]] = set()
        for one in memories:
            common |= {(p.key.step, p.key.attempt, p.size) for p in one.shared}
            for part in (*one.private, *one.buddy):
                own.setdefault((part.key.step, part.key.attempt, part.size), set()).add(part.rank)
        whole = [s for s in common if len(own.get(s, ())) == s[2]]
        best = max(whole, default=None)
        if found is None:
            return f"attempt {attempt} starts from step 0 beside {best}" if best is not None else ""
        (key, size), what = found.snapshot[:2], f"attempt {attempt} resumes from"
        missing = set(range(size)) - own.get((key.step, key.attempt, size), set())
        if missing:
            return f"{what} {key} of {size} ranks, and nobody has the part of rank {min(missing)}"
        newer = best is not None and best[:2] > (key.step, key.attempt)
        return f"{what} {key}, not from {best} (step, attempt, ranks)" if newer else ""


class Samples:
    """No sample is lost or used twice by the steps that count, over any sequence of sizes."""

    def __init__(self, reference: int, keeps: bool) -> None:
        """`keeps`: a step has as many samples as `reference` ranks take, whatever their number."""
        self._reference, self._keeps = reference, keeps
        self._begun: dict[int, tuple[int, int, int]] = {}  # attempt → step, samples, of a step

    def resumed(self, attempt: int, key: Key | None, dealt: Sequence[range]) -> str:
        """The ranks of an attempt take these samples for their first step after this snapshot."""
        used = self._used(key) if key is not None else 0
        each = BATCH * (self._reference if self._keeps else len(dealt))
        self._begun[attempt] = (key.step if key is not None else 0, used, each)
        taken = [sample for share in dealt for sample in share]
        if taken == list(range(used, used + each)):
            return ""
        shares = ", ".join(f"{share.start} to {share.stop - 1}" for share in dealt)
        return f"{used} samples are used, and ranks of attempt {attempt} take {shares} of {each}"

    def _used(self, key: Key) -> int:
        step, used, each = self._begun[key.attempt]
        return used + (key.step - step) * each


def _keys(held: Sequence[Holding]) -> set[tuple[int, int]]:
    return {(key.step, key.attempt) for one in held for key in one.shared}


def _whole(key: tuple[int, int], held: Sequence[Holding], distance: int) -> bool:
    """Every rank's own part is with it or with the rank at the same place on the next node."""
    step, attempt = key
    for rank, one in enumerate(held):
        buddy = held[(rank + distance) % len(held)]
        copies = one.private | (buddy.buddy if len(held) > distance else frozenset())
        if not any(k.step == step and k.attempt == attempt for k in copies):
            return False
    return True


def _lacking(attempt: int, plan: RestorePlan, held: Sequence[Holding], distance: int) -> str:
    """Who is to give what it does not have."""
    for rank, (shared, private) in enumerate(zip(plan.shared_from, plan.private_from, strict=True)):
        copies = held[private].private if private == rank else held[private].buddy
        neighbour = private in (rank, (rank + distance) % len(held))
        if plan.key not in held[shared].shared or plan.key not in copies or not neighbour:
            to = f"ranks {shared}, {private}, which have no copy for it"
            return f"rank {rank} of attempt {attempt} is sent to {to}"
    return ""

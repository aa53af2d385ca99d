"""Which groups of nodes repeat a step next, by what has become of those that have: pure.

Of groups of one size most are right, so a group of a size that no other has repeats it a second
time: there is nothing else that it could be compared with.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from holdfast.diagnosis.group_testing import Group, Located, TryGroups, next_step
from holdfast.diagnosis.repetition import (
    Digests,
    Repetition,
    Told,
    compared_elsewhere,
    failing,
    judge_repetition,
)

Tried = Mapping[Group, Sequence[Digests | None]]  # None: it did not come to the end of the step


def isolation(nodes: Sequence[str], unit: int, tried: Tried) -> TryGroups | Located:
    """Until the bad nodes are known. Raises ValueError unless the nodes are whole replicas."""
    sizes = Counter(map(len, tried))
    alone = [group for group, ran in tried.items() if len(ran) == 1 and sizes[len(group)] == 1]
    if again := tuple(group for group in alone if tried[group][0] is not None):
        return TryGroups(again)
    return next_step(nodes, unit, failing(tried))


def comparison(members: Group, elsewhere: Group, tried: Tried) -> TryGroups | None:
    """Twice in place, then once elsewhere if anywhere; None once that is done or has failed."""
    if any(one is None for ran in tried.values() for one in ran):
        return None
    if len(tried.get(members, ())) < 2:
        return TryGroups((members,))
    return TryGroups((elsewhere,)) if elsewhere and elsewhere not in tried else None


def compared(
    step: int, runs: Sequence[Digests], told: tuple[Told, Told], there: Digests | None, names: str
) -> Repetition:
    """Of two repetitions in place, and one elsewhere, on nodes of these names, if there was one."""
    found = judge_repetition(step, (runs[0], runs[1]), told)
    return found if there is None else compared_elsewhere(found, names, runs[1], there)

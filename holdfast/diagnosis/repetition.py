"""What a step that was repeated twice says about the first time: genuine, transient, the machine.

Rerun in place as Megatron does with a loss that is NaN: what comes out otherwise the second time is
not to be trusted, on this machine at least; what comes out the same twice, and as it was told the
first time, is what the step does; and if it was told otherwise the first time, that has passed.
What comes out otherwise on other nodes is of the machines. Where groups of nodes repeat it, most of
those of one size that end alike are right.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

Digests = Mapping[int, Mapping[str, str]]  # of a leaf of the state, by rank and path
Group = tuple[str, ...]  # nodes, in the order of their ranks
Told = Mapping[int, str]  # what rank 0 logged, by step
LISTED_MAX = 5


class RepetitionVerdict(StrEnum):
    """What became of it."""

    MACHINE = "machine"  # the repetitions differ
    ELSEWHERE = "elsewhere"  # those in place are the same, and the one on other nodes is not
    TRANSIENT = "transient"  # they are the same, and the first time was not
    GENUINE = "genuine"  # all are the same
    REPEATABLE = "repeatable"  # the repetitions are; what was told the first time is not known


class Repetition(NamedTuple):
    """With what it rests on."""

    verdict: RepetitionVerdict
    summary: str
    differing: tuple[str, ...] = ()  # `rank N: LEAF`
    step: int | None = None  # the first that was told otherwise


def judge_repetition(
    step: int, runs: tuple[Digests, Digests], logs: tuple[Told, Told]
) -> Repetition:
    """`runs` are the states after the step, `logs` what was told the first time and when it was
    repeated."""
    differing = tuple(_differing(*runs))
    if differing:
        summary = (
            f"Two repetitions of step {step} end with different bits ({_listed(differing)}): this "
            "machine produces wrong results, or the script is not deterministic."
        )
        return Repetition(RepetitionVerdict.MACHINE, summary, differing)
    first, again = logs
    both = sorted(first.keys() & again.keys())
    other = next((at for at in both if first[at] != again[at]), None)
    if other is not None:
        summary = (
            f"Step {other} differs from the first run ({first[other]}, now {again[other]}), twice "
            "with the same bits: the fault was transient."
        )
        return Repetition(RepetitionVerdict.TRANSIENT, summary, step=other)
    if step in both:
        summary = (
            f"Step {step} equals the first run ({again[step]}), twice with the same bits: the code "
            "and the data cause it."
        )
        return Repetition(RepetitionVerdict.GENUINE, summary)
    summary = f"Step {step} ends twice with the same bits; the log of the first run is gone."
    return Repetition(RepetitionVerdict.REPEATABLE, summary)


def compared_elsewhere(here: Repetition, nodes: str, mine: Digests, theirs: Digests) -> Repetition:
    """What is known once other nodes have repeated the step, too."""
    if here.verdict is RepetitionVerdict.MACHINE:
        return here
    differing = tuple(_differing(mine, theirs))
    if not differing:
        return here._replace(summary=f"{here.summary} It does so on {nodes} as well.")
    known = {
        RepetitionVerdict.GENUINE: f"equals the first run: {nodes} produces wrong results",
        RepetitionVerdict.TRANSIENT: "differs from the first run",
        RepetitionVerdict.REPEATABLE: "cannot be compared with the first run",
    }[here.verdict]
    summary = (
        f"On {nodes} the step ends with other bits ({_listed(differing)}) than twice in place; the "
        f"run in place {known}."
    )
    return Repetition(RepetitionVerdict.ELSEWHERE, summary, differing, here.step)


def failing(tried: Mapping[Group, Sequence[Digests | None]]) -> dict[Group, bool]:
    """Which groups of nodes fail, by how their repetitions of the step ended; None: not at all.
    Groups of one size ought to end alike. Where no two do, or as many in another way, all fail."""
    ends = {group: _end_of(ran) for group, ran in tried.items()}
    found = {group: end is None for group, end in ends.items()}
    for size in {len(group) for group, end in ends.items() if end is not None}:
        alike = {
            group: end for group, end in ends.items() if end is not None and len(group) == size
        }
        (most, times), *others = Counter(alike.values()).most_common()
        tie = bool(others) and (times == 1 or others[0][1] == times)
        found |= {group: tie or end != most for group, end in alike.items()}
    return found


def _end_of(ran: Sequence[Digests | None]) -> str | None:
    """The same for the same bits; None if one did not come to its end, or they differ."""
    first = ran[0]
    if first is None or any(one is None or one != first for one in ran):
        return None
    return repr([(rank, sorted(leaves.items())) for rank, leaves in sorted(first.items())])


def _differing(one: Digests, two: Digests) -> list[str]:
    found = []
    for rank in sorted(one.keys() | two.keys()):
        mine, other = one.get(rank, {}), two.get(rank, {})
        paths = sorted(mine.keys() | other.keys())
        found += [f"rank {rank}: {path}" for path in paths if mine.get(path) != other.get(path)]
    return found


def _listed(differing: tuple[str, ...]) -> str:
    more = len(differing) - LISTED_MAX
    return ", ".join(differing[:LISTED_MAX]) + (f" and {more} more" if more > 0 else "")

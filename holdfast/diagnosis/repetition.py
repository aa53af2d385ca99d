"""What a step that was repeated twice says about the first time: genuine, transient, the machine.

Rerun in place as Megatron does with a loss that is NaN: what comes out otherwise the second time is
not to be trusted, on this machine at least; what comes out the same twice, and as it was told the
first time, is what the step does; and if it was told otherwise the first time, that has passed.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

Digests = Mapping[int, Mapping[str, str]]  # of a leaf of the state, by rank and path
Told = Mapping[int, str]  # what rank 0 logged, by step
LISTED_MAX = 5


class RepetitionVerdict(StrEnum):
    """What became of it."""

    MACHINE = "machine"  # the repetitions differ
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
            "machine computes wrong, or the script is not deterministic."
        )
        return Repetition(RepetitionVerdict.MACHINE, summary, differing)
    first, again = logs
    both = sorted(first.keys() & again.keys())
    other = next((at for at in both if first[at] != again[at]), None)
    if other is not None:
        summary = (
            f"Step {other} comes out otherwise than the first time ({first[other]}, now "
            f"{again[other]}), twice with the same bits: what happened then has passed."
        )
        return Repetition(RepetitionVerdict.TRANSIENT, summary, step=other)
    if step in both:
        summary = (
            f"Step {step} comes out as the first time ({again[step]}), twice with the same bits: "
            "it is what the code and the data do."
        )
        return Repetition(RepetitionVerdict.GENUINE, summary)
    summary = f"Step {step} ends twice with the same bits; what was logged the first time is gone."
    return Repetition(RepetitionVerdict.REPEATABLE, summary)


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

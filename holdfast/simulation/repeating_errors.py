"""Errors that come again: those of the code or of a batch, wherever that is done, and a machine's.

`ScriptErrors` is what is wrong with the code. `FairErrors` is the referee of whom that is blamed
on. Told by the world whose each error is, it allows a machine to be suspected of one of the code's
only as long as no other machine has had it; and a machine's error to be called the code's no more
often than by chance.
"""

from random import Random
from typing import NamedTuple

from holdfast.actions import EndJob, Entry, Fence, Outcome
from holdfast.events import Diagnosed, WorkerError
from holdfast.simulation.fair_updates import kind
from holdfast.versions import Version

ILLEGAL = WorkerError(
    type="torch.AcceleratorError",
    message="CUDA error: an illegal memory access was encountered",
    file="train.py",
    line=77,
)
FLAKY = WorkerError(type="KeyError", message="'shard'", file="train.py", line=12)
CRASHES = "crashing"  # a version: its code fails on the device, always at the same step
SOON = 2  # steps after it has begun
CHANCE = 0.05
"""Of the errors of machines, so many may be called the code's: `diagnosis/code_or_machine.py` calls
it out of question at one case of twenty. One may be in any world."""


class Bug(NamedTuple):
    """What is wrong with the code, or its data; 0: with all versions, at any step."""

    version: int
    step: int


class ScriptErrors:
    """Errors that always come after a step, of whichever rank or always of the same one."""

    def __init__(self) -> None:
        self._batches: dict[int, int | None] = {}  # step → the rank, None: any
        self._versions: dict[int, int] = {}  # that crash, and after which step

    def spoil(self, step: int, rank: int | None) -> None:
        """The batch after this step is a bad one."""
        self._batches.setdefault(step, rank)

    def after(self, version: Version, inherited: int) -> dict[int, Bug]:
        """After which steps one comes in an attempt that goes on from step `inherited`."""
        found = {step: Bug(0, step) for step in self._batches if step >= inherited}
        if kind(version) == CRASHES:
            step = self._versions.setdefault(version.number, inherited + SOON)
            found[max(step, inherited)] = Bug(version.number, step)
        return found

    def rank_of(self, bug: Bug, world_size: int, dice: Random) -> int:
        """Who fails of it."""
        rank = None if bug.version else self._batches[bug.step]
        return dice.randrange(world_size) if rank is None else rank % world_size


class FairErrors:
    """Which errors came, whose they really are, and whom they were blamed on."""

    def __init__(self) -> None:
        self._whose: dict[tuple[int, int], tuple[str, Bug | None]] = {}  # attempt, rank → node
        self._on_device: dict[str, set[tuple[int, int]]] = {}  # node → attempts and ranks
        self._known: dict[tuple[Bug, int], set[str]] = {}  # bug and version → nodes
        self._of_machines = self._wrong = 0
        self.may_end = False  # an error has come that a job may rightly end for

    def struck(
        self, attempt: int, rank: int, node: str, error: WorkerError, bug: Bug | None
    ) -> None:
        """A worker fails of a bug or, with none, of its machine."""
        self._whose[attempt, rank] = node, bug
        self.may_end |= error == FLAKY or (bug is not None and not bug.version)
        if error == ILLEGAL:
            self._on_device.setdefault(node, set()).add((attempt, rank))

    def on_device(self, node: str) -> set[tuple[int, int]]:
        """Attempts and ranks in which a device of this node has reported an error."""
        return self._on_device.get(node, set())

    def forget(self) -> None:
        """A controller was lost, and what it had heard may be, too."""
        self._known.clear()

    def journaled(self, entry: Entry) -> str:
        """Whom a verdict blames, and what is done about it."""
        event = entry.event
        if not isinstance(event, Diagnosed) or event.rank is None:
            return ""
        known = self._whose.get((event.attempt, event.rank))
        taken = any(choice.cause == event.cause for choice in entry.choices)
        if known is None or not taken:
            return ""  # something else explains it
        node, bug = known
        found = event.occurrence.recurs if event.occurrence is not None else None
        whose = found.whose if found is not None else ""
        if bug is None:
            return self._of_machine(node, whose)
        before = self._known.setdefault((bug, _version(event)), set())
        others = before - {node}
        before.add(node)
        left = any(isinstance(one, Fence) and one.node == node for one in entry.actions)
        if others and (left or whose == "machine"):
            what = "left" if left else "suspected"
            return f"{node} is {what} for an error of the code that {min(others)} has had, too"
        return _ended(entry) if bug.version else ""

    def _of_machine(self, node: str, whose: str) -> str:
        self._of_machines += 1
        self._wrong += whose == "code"
        if self._wrong <= max(1, CHANCE * self._of_machines):
            return ""
        count = f"{self._wrong} of {self._of_machines} errors of machines"
        return f"an error of {node} is called the code's: {count} are"


def _version(event: Diagnosed) -> int:
    return event.occurrence.version if event.occurrence is not None else 0


def _ended(entry: Entry) -> str:
    """A version that fails at its start is given up, and not the job."""
    failed = (isinstance(a, EndJob) and a.outcome is Outcome.FAILED for a in entry.actions)
    return "the job ends for an error that an update brought" if any(failed) else ""

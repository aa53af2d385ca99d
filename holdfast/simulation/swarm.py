"""Many hostile worlds, one for each seed, on all cores.

A seed is all that is needed to see the same world again: `run` gives the same journal, byte for
byte, on any machine. Whatever stops a world, a referee or an exception of the code under test, is
a finding and is told with its seed.
"""

import multiprocessing
import os
from collections.abc import Iterator

import msgspec

from holdfast.simulation.hardship import draw
from holdfast.simulation.world import World


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one world. `foul` is empty unless something is wrong."""

    seed: int
    hours: float
    nodes: int
    foul: str
    outcome: str  # of the job; empty if it never ended
    attempts: int
    entries: int  # of the journal
    happened: int  # things that happened in the world
    virtual_s: float

    @property
    def command(self) -> str:
        """What shows this world again."""
        length = "" if self.hours == 24 else f" --hours {self.hours:g}"
        size = "" if self.nodes == 16 else f" --nodes {self.nodes}"
        return f"holdfast simulate --seed {self.seed}{length}{size}"


def run(seed: int, *, hours: float = 24.0, nodes: int = 16) -> tuple[Told, bytes]:
    """One world from its beginning to its end, and its journal."""
    world = World(draw(seed, hours=hours, nodes=nodes))
    foul = ""
    try:
        world.run()
    except Exception as error:  # whatever it is, it is a finding
        kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
        foul = f"{kind}{error}" or type(error).__name__
    referees = world.referees
    told = Told(
        seed=seed,
        hours=hours,
        nodes=nodes,
        foul=foul,
        outcome=referees.outcome.value if referees.outcome else "",
        attempts=referees.attempts,
        entries=referees.entries,
        happened=world.nature.happened,
        virtual_s=world.nature.now,
    )
    return told, bytes(world.book.lines)


def _tell(words: tuple[int, float, int]) -> Told:
    seed, hours, nodes = words
    return run(seed, hours=hours, nodes=nodes)[0]


def swarm(first: int, count: int, *, hours: float = 24.0, nodes: int = 16) -> Iterator[Told]:
    """Run `count` worlds from seed `first` on; each is told as soon as it is over."""
    work = ((seed, hours, nodes) for seed in range(first, first + count))
    processes = min(len(os.sched_getaffinity(0)), count)
    with multiprocessing.get_context("forkserver").Pool(processes) as pool:
        yield from pool.imap_unordered(_tell, work, chunksize=1 if count < 100 else 4)

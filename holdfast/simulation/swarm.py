"""Many hostile worlds, one for each seed, on all cores.

A seed is all that is needed to see the same world again: `run` gives the same journal, byte for
byte, on any machine. Whatever stops a world, a referee or an exception of the code under test, is
a finding and is told with its seed. Worlds are handed out a few at a time, so that a swarm without
end needs no more memory than a short one.
"""

import os
import signal
from collections.abc import Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing import get_context

import msgspec

from holdfast.errors import Error
from holdfast.simulation.hardship import draw
from holdfast.simulation.world import World


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one hostile world."""

    seed: int
    hours: float  # of hardship; calm follows
    nodes: int  # at most, spares included
    foul: str  # what a referee or an exception says; empty: nothing is wrong
    command: str  # what shows this world again
    outcome: str  # of the job; empty if it never ended
    attempts: int
    entries: int  # of the journal
    happened: int  # things that happened in the world
    virtual_s: float  # how long it took in the world


def run(seed: int, *, hours: float = 24.0, nodes: int = 16) -> tuple[Told, bytes]:
    """One world from its beginning to its end, and its journal. See `draw`."""
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
        command=command(seed, hours, nodes),
        outcome=referees.outcome.value if referees.outcome else "",
        attempts=referees.attempts,
        entries=referees.entries,
        happened=world.env.happened,
        virtual_s=world.env.now,
    )
    return told, bytes(world.book.lines)


def command(seed: int, hours: float, nodes: int) -> str:
    """What shows the world of this seed again."""
    length = "" if hours == 24 else f" --hours {repr(hours).removesuffix('.0')}"
    size = "" if nodes == 16 else f" --nodes {nodes}"
    return f"holdfast simulate --seed {seed}{length}{size}"


def _tell(seed: int, hours: float, nodes: int) -> Told:
    return run(seed, hours=hours, nodes=nodes)[0]


def swarm(first: int, count: int, *, hours: float = 24.0, nodes: int = 16) -> Generator[Told]:
    """Run `count` worlds from seed `first` on; each is told as soon as it is over.

    Raises `Error` simulation-killed if one of our processes is killed.
    """
    processes = min(len(os.sched_getaffinity(0)), count)
    quiet = (signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is this process's business
    seeds = iter(range(first, first + count))
    context = get_context("forkserver")
    with ProcessPoolExecutor(processes, context, signal.signal, quiet) as pool:
        try:
            yield from _told(pool, seeds, 2 * processes, hours, nodes)
        except BrokenProcessPool as error:
            raise _killed() from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _told(
    pool: ProcessPoolExecutor, seeds: Iterator[int], ahead: int, hours: float, nodes: int
) -> Iterator[Told]:
    running = {pool.submit(_tell, seed, hours, nodes) for seed in islice(seeds, ahead)}
    while running:
        done, running = wait(running, return_when=FIRST_COMPLETED)
        running |= {pool.submit(_tell, seed, hours, nodes) for seed in islice(seeds, len(done))}
        yield from (future.result() for future in done)


def _killed() -> Error:
    return Error(
        "simulation-killed",
        "a process that simulates worlds was killed",
        why="it got SIGKILL, most often because the machine ran out of memory",
        help="run fewer at a time: taskset --cpu-list 0 holdfast simulate --swarm 100",
    )

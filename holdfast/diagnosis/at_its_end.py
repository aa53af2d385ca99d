"""Where workers stand whose scripts have ended and whose processes do not.

Python then joins the threads of the script that are no daemons and calls the functions of `atexit`
(docs.python.org/3/library/atexit.html); either may take for ever, and restarting such a worker only
repeats all of its training. What stands there may as well upload the last checkpoint, so a worker
is only hung where none of its threads waits for something outside.
"""

from collections.abc import Mapping, Sequence

from holdfast.messages import WorkerReport
from holdfast.stacks import MAIN, StackGroup, ThreadStack

PHASE = "ending"
LEFT = "finished"  # the loop
JOINS = ("_shutdown (threading.py", "_python_exit (concurrent/futures/", "join (threading.py")
OURS = "holdfast/"
NAMED = 2  # threads
CLOSES = "destroy_process_group (torch/distributed/"


def all_are(ranks: Sequence[int], pages: Mapping[int, WorkerReport]) -> bool:
    """Whether every one of these ranks has come to the end of its script."""
    return bool(ranks) and all(rank in pages and pages[rank].phase == PHASE for rank in ranks)


def some_are(ranks: Sequence[int], pages: Mapping[int, WorkerReport]) -> bool:
    """Whether some have, and the others are behind their loops, where a rank may well work for
    hours while the rest wait for it."""
    phases = {pages[rank].phase if rank in pages else "" for rank in ranks}
    return phases == {PHASE, LEFT}


def closes(group: StackGroup) -> bool:
    """Whether it destroys its process group, and nothing of the script goes on below that."""
    places = [n for n, frame in enumerate(group.frames) if frame.startswith(CLOSES)]
    inner = group.frames[places[-1] :] if places else ()
    return bool(inner) and all(frame.partition(" (")[2].startswith("torch/") for frame in inner)


def story(groups: Sequence[StackGroup]) -> str:
    """What they wait for, of the lowest rank."""
    first = min(groups, key=lambda group: group.ranks)
    return f"scripts have ended but their processes have not exited: Python {_waits(first)}"


def _waits(group: StackGroup) -> str:
    if not group.threads:
        return f"was not seen ({group.why or 'no stack'})"
    main = group.frames if group.threads[0].name == MAIN else ()
    if any(frame.startswith(JOINS) for frame in main):
        theirs = [thread for thread in group.threads[1:] if not _is_ours(thread)]
        named = ", ".join(map(_named, theirs[:NAMED]))
        return f"joins non-daemon threads{': ' if named else ''}{named}"
    if main:
        return f"has called {main[0]} (atexit, or a destructor){_inner(main)}"
    return "is in an atexit function, a destructor or a native library (no Python frame)"


def _inner(frames: Sequence[str]) -> str:
    return f", in {frames[-1]}" if len(frames) > 1 else ""


def _is_ours(thread: ThreadStack) -> bool:
    return all(frame.partition(" (")[2].startswith(OURS) for frame in thread.frames)


def _named(thread: ThreadStack) -> str:
    own = [f for f in thread.frames if not f.partition(" (")[2].startswith("threading.py")]
    return f"{thread.name or 'a thread'} in {(own or thread.frames)[-1]}"

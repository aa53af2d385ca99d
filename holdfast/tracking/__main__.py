"""`python -m holdfast.tracking`: follow the metrics of one job until standard input is closed.

One thread for each tracker, so that none waits for another. A lock on the folder keeps the process
of the next agent with rank 0 waiting until this one has sent what it can.
"""

import fcntl
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from holdfast.tracking.points import ReadPlace, read
from holdfast.tracking.trackers import NotUsableError, TrackedRun, Tracker, load_ahead, opened

LOOK_S = 1.0
LAST_S = 20.0  # to send what is left once the agent is gone
CLOSE_S = 4.0  # and for packages to return
FIRST_PAUSE_S, LAST_PAUSE_S = 1.0, 60.0
SAYS = "tracking:"
METRICS, PLACE, LOCK = "metrics.jsonl", "tracking.json", "tracking.lock"


class TrackerPlace(msgspec.Struct):
    """How far a tracker has come."""

    offset: int = 0  # in the file
    step: int = -1  # newest that was sent
    file: int = 0  # which one: `ReadPlace`


class TrackerPlaces:
    """Of all trackers of a job, in one file that is replaced whole."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        try:
            self._all = msgspec.json.decode(path.read_bytes(), type=dict[str, TrackerPlace])
        except (OSError, msgspec.MsgspecError):
            self._all = {}

    def of(self, name: str) -> TrackerPlace:
        """Of one tracker."""
        return self._all.get(name, TrackerPlace())

    def set(self, name: str, position: TrackerPlace) -> None:
        """It has come so far. Raises `OSError`."""
        with self._lock:
            self._all[name] = position
            part = self._path.with_suffix(".part")
            part.write_bytes(msgspec.json.encode(self._all))
            os.replace(part, self._path)


class TrackerFollowing:
    """One tracker that follows the file."""

    def __init__(
        self, name: str, job: str, run: str, folder: Path, files: Path, positions: TrackerPlaces
    ) -> None:
        self.name, self._positions = name, positions
        self._metrics, self._files = folder / METRICS, files
        self._job, self._run = job, run
        self._tracker: Tracker | None = None
        self._told = ""  # what was said last

    def go_on(self, ended: threading.Event) -> None:
        """Until `ended`, and what is left then."""
        pause_s, until = FIRST_PAUSE_S, float("inf")
        while time.monotonic() < until:
            last = ended.is_set()
            until = min(until, time.monotonic() + LAST_S) if last else until
            try:
                more = self._send_some()
                pause_s, self._told = FIRST_PAUSE_S, ""
            except NotUsableError as why:
                self._say(f"cannot be used: {why}")
                return
            except Exception as error:  # a service that is away must not end this
                self._say(f"{type(error).__name__}: {error}; retrying")
                self._tracker = None
                self._pause(pause_s, ended)
                pause_s = min(LAST_PAUSE_S, 2 * pause_s)
                continue
            if not more and last:
                break
            if not more:
                ended.wait(LOOK_S)
        self._close()

    def _pause(self, seconds: float, ended: threading.Event) -> None:
        if ended.is_set():
            time.sleep(FIRST_PAUSE_S)
        else:
            ended.wait(seconds)

    def _send_some(self) -> bool:
        """Whether there was something."""
        position = self._positions.of(self.name)
        before = ReadPlace(position.offset, position.file)
        points, after = read(self._metrics, before)
        if after == before:
            return False
        if self._tracker is None:
            run = TrackedRun(self._job, self._run, self._files, position.step)
            self._tracker = opened(self.name, run)
        self._tracker.send(points)
        self._positions.set(
            self.name,
            TrackerPlace(after.offset, max(position.step, self._tracker.newest), after.file),
        )
        return True

    def _close(self) -> None:
        try:
            if self._tracker is not None:
                self._tracker.close()
        except Exception as error:
            self._say(f"could not be closed: {type(error).__name__}: {error}")

    def _say(self, what: str) -> None:
        if what != self._told:
            # In one write: each tracker has a thread of its own.
            print(f"{SAYS} {self.name}: {what}\n", end="", file=sys.stderr, flush=True)
        self._told = what


def main(words: Sequence[str], until: Callable[[], object]) -> None:
    """`FOLDER FILES JOB RUN TRACKER...`; goes on until `until` returns, and for what is left."""
    folder, files, job, run, *names = words
    with open(Path(folder) / LOCK, "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("tracking: waiting for the previous process to finish sending", file=sys.stderr)
            fcntl.flock(lock, fcntl.LOCK_EX)
        load_ahead(names)
        positions, ended = TrackerPlaces(Path(folder) / PLACE), threading.Event()
        all_of_them = [
            TrackerFollowing(name, job, run, Path(folder), Path(files), positions) for name in names
        ]
        threads = [
            threading.Thread(target=one.go_on, args=(ended,), name=f"{SAYS} {one.name}")
            for one in all_of_them
        ]
        for thread in threads:
            thread.start()
        until()
        ended.set()
        for thread in threads:
            thread.join()


def agent_is_gone() -> None:
    """Returns once it is, and has this process end soon after, whatever a package waits for.

    Nobody is there to end it then. It holds until the process has ended, because packages have
    threads and last words of their own after `main`.
    """
    sys.stdin.read()
    timer = threading.Timer(LAST_S + CLOSE_S, _give_up)
    timer.daemon = True
    timer.start()


def _give_up() -> None:
    for thread in threading.enumerate():
        if thread.name.startswith(SAYS):
            said = f"{thread.name}: no answer; unsent points stay in {METRICS}\n"
            print(said, end="", file=sys.stderr, flush=True)
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:], agent_is_gone)

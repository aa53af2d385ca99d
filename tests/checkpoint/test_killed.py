"""SIGKILL at any moment of a save: what counts is whole and of one step, and nothing else counts.

The moments are spread over two saves: while bytes, descriptions and the manifest are written,
between them, and while older checkpoints are thinned out. A saver says when it begins to change
something; a kill comes a random time after the change whose turn it is.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.checkpoint import manifest as files
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.shelf import open_checkpoint, read_chunk, survey
from holdfast.checkpoint.stores import Store, open_store
from tests.checkpoint.conftest import CREDENTIALS
from tests.checkpoint.saver import PIECES, RANKS

KILLS = {"folder": 190, "s3": 12}
MORE = int(os.environ.get("HOLDFAST_TEST_KILLS", "1"))  # so many times as many
CHANGES = 12  # of a save that also thins out: two files a rank, the manifest, as many removed
PAUSE_S = {"folder": 0.01, "s3": 0.1}  # about two changes, on the machine it was written on


class Saver:
    """The process that is told to start savers, and what it tells."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._commands, self._answers = process.stdin, process.stdout

    def start(self) -> int:
        """A new saver that begins to save; its process number."""
        self._commands.write("go\n")
        self._commands.flush()
        child, number = self._answers.readline().split()
        ready = self._answers.readline()
        assert child == "child" and ready.startswith("ready"), ready
        return int(number)

    def wait_for_changes(self, count: int) -> list[int]:
        """Until it began so many changes; the steps that it said to be committed before."""
        said: list[int] = []
        while count:
            line = self._answers.readline().split()
            assert line[0] in ("change", "saved"), line
            if line[0] == "change":
                count -= 1
            else:
                said.append(int(line[1]))
        return said

    def ended(self) -> list[int]:
        """The steps it said to be committed, once it is dead by our hand."""
        said: list[int] = []
        while True:
            line = self._answers.readline().split()
            if line[0] == "gone":
                assert int(line[1]) == -signal.SIGKILL
                return said
            if line[0] == "saved":
                said.append(int(line[1]))


@contextmanager
def saver(place: str) -> Iterator[Saver]:
    words = [sys.executable, "-m", "tests.checkpoint.saver", place]
    root = Path(__file__).resolve().parents[2]
    process = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root
    )
    try:
        yield Saver(process)
    finally:
        process.stdin.close()  # type: ignore[union-attr]
        assert process.wait(20) == 0


def require_whole(store: Store, manifest: Manifest) -> None:
    """Every leaf of every rank is of the step of the checkpoint, down to the last byte."""
    for rank, part in open_checkpoint(store, manifest.key).parts.items():
        private = part.parts["private"].leaves
        assert len(private) == PIECES + 1
        for number, leaf in enumerate(private[1:]):
            found = b"".join(read_chunk(store, chunk) for chunk in leaf.chunks or ())
            assert found == f"{rank} {manifest.step} {number} ".encode() * 2000
        for chunk in (*private[0].chunks, *part.parts["private"].index):  # type: ignore[misc]
            read_chunk(store, chunk)


@pytest.mark.parametrize("kind", KILLS)
def test_whatever_the_moment_of_a_kill_what_counts_is_whole(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    place = str(tmp_path / "shelf")
    if kind == "s3":
        place = str(request.getfixturevalue("s3_place"))
        assert os.environ["AWS_ACCESS_KEY_ID"] == CREDENTIALS["AWS_ACCESS_KEY_ID"]
    moments = random.Random(6)
    newest, stages, referred = 0, set(), 0
    store = open_store(place)
    with saver(place) as process:
        for turn in range(KILLS[kind] * MORE):
            child = process.start()
            said = process.wait_for_changes(turn % (2 * CHANGES))
            end = time.monotonic() + moments.uniform(0, PAUSE_S[kind])
            while time.monotonic() < end:
                time.sleep(0.0005)
            os.kill(child, signal.SIGKILL)
            said += process.ended()
            newest = max([newest, *said])
            found = survey(store)
            assert found.damaged == ()
            assert newest <= (found.committed[0].step if found.committed else 0)
            for manifest in found.committed[: None if kind == "folder" else 1]:
                assert len(manifest.ranks) == RANKS
                require_whole(store, manifest)
                referred += bool(manifest.files)
            stages |= {len(store.list(files.folder_of(key))) for key in found.unfinished}
    for manifest in survey(store).committed:
        require_whole(store, manifest)
    assert newest > KILLS[kind] / 4
    assert referred, "no checkpoint needed a file of an older one"
    assert len(stages) > 2, "the kills fell into too few stages of a save to prove anything"

"""SIGKILL at any moment of a save: what counts is whole and of one step, and nothing else counts.

The moments are spread over two saves: while bytes, descriptions and the manifest are written,
between them, and while older checkpoints are thinned out. A saver says what it begins to change;
half of the kills come with the change whose turn it is, half some random moment later.
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
from holdfast.checkpoint.catalog import open_checkpoint, read_chunk, survey
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.open_store import open_store
from holdfast.checkpoint.stores import CheckpointStore
from tests.checkpoint.conftest import CREDENTIALS
from tests.checkpoint.saver import PIECES, RANKS
from tests.more import sample
from tests.patience import PATIENCE_S

KILLS = {"folder": 190, "s3": 12}  # at most, and so many times as many:
TIMES = int(os.environ.get("HOLDFAST_TEST_KILLS", "1"))
PAUSE_S = {"folder": 0.01, "s3": 0.1}  # about two changes, on the machine it was written on
CHANGES = ("create", "put", "remove")
WRITTEN = {
    *(f"create rank-{rank:05}.data" for rank in range(RANKS)),
    *(f"put rank-{rank:05}.json" for rank in range(RANKS)),
    f"put {files.MANIFEST}",
}
CYCLE = 2 * len(WRITTEN)  # changes of a save that also thins out


class Saver:
    """The process that is told to start savers, and what it tells."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._commands, self._answers = process.stdin, process.stdout
        self.committed = 0  # the newest step said to be
        self.change = "nothing"  # what it said last to begin

    def start(self) -> int:
        """A new saver; its process number."""
        self._commands.write("go\n")
        self._commands.flush()
        self.change = "nothing"
        return int(self._expect("child"))

    def wait_for_changes(self, count: int) -> None:
        """Until it is about to save, or has begun so many changes since."""
        self._expect("ready")
        while count:
            word, rest = self._next()
            assert word != "gone", f"it ended by itself with {rest}"
            count -= word in CHANGES

    def ended(self) -> int:
        """Its exit status, once it has ended."""
        while True:
            word, rest = self._next()
            if word == "gone":
                return int(rest)

    def _expect(self, wanted: str) -> str:
        word, rest = self._next()
        assert word == wanted, f"{word} {rest}"
        return rest

    def _next(self) -> tuple[str, str]:
        """A word of what it says, and the rest."""
        word, rest = self._answers.readline().split()
        if word in CHANGES:
            self.change = f"{word} {rest.rpartition('/')[2]}"
        elif word == "saved":
            self.committed = max(self.committed, int(rest))
        return word, rest


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
        assert process.wait(PATIENCE_S) == 0


def require_whole(store: CheckpointStore, manifest: Manifest) -> None:
    """Every leaf of every rank is of the step of the checkpoint, down to the last byte."""
    for rank, part in open_checkpoint(store, manifest.key).parts.items():
        private = part.parts["private"].leaves
        assert len(private) == PIECES + 1
        for number, leaf in enumerate(private[1:]):
            found = b"".join(read_chunk(store, chunk) for chunk in leaf.chunks or ())
            assert found == f"{rank} {manifest.step} {number} ".encode() * 2000
        for chunk in (*private[0].chunks, *part.parts["private"].index):  # type: ignore[misc]
            read_chunk(store, chunk)


@pytest.mark.parametrize("kind", sample(["folder"], ["s3"]))
def test_whatever_the_moment_of_a_kill_what_counts_is_whole(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    place = str(tmp_path / "shelf")
    if kind == "s3":
        place = str(request.getfixturevalue("s3_place"))
        assert os.environ["AWS_ACCESS_KEY_ID"] == CREDENTIALS["AWS_ACCESS_KEY_ID"]
    moments = random.Random(6)
    changes: set[str] = set()
    unfinished, referred = 0, 0
    store = open_store(place)
    with saver(place) as process:
        for turn in range(KILLS[kind] * TIMES):
            enough = process.committed > turn / 4 > KILLS[kind] / 12 and referred and unfinished
            if TIMES == 1 and enough and not _missed(kind, changes):
                break
            child = process.start()
            process.wait_for_changes(turn % (2 * CYCLE))
            end = time.monotonic() + moments.randrange(2) * moments.uniform(0, PAUSE_S[kind])
            while time.monotonic() < end:
                time.sleep(0.0005)
            os.kill(child, signal.SIGKILL)
            assert process.ended() == -signal.SIGKILL
            changes.add(process.change)
            found = survey(store)
            assert found.damaged == ()
            assert process.committed <= (found.committed[0].step if found.committed else 0)
            for manifest in found.committed[: None if kind == "folder" else 1]:
                assert len(manifest.ranks) == RANKS
                require_whole(store, manifest)
                referred += bool(manifest.files)
            unfinished += len(found.unfinished)
    for manifest in survey(store).committed:
        require_whole(store, manifest)
    assert process.committed > turn / 4
    assert referred, "no checkpoint needed a file of an older one"
    assert unfinished, "no kill left anything unfinished"
    assert not _missed(kind, changes), f"the kills fell into {changes} only"


def _missed(kind: str, changes: set[str]) -> set[str]:
    """Changes that no kill fell into; with S3 any four will do."""
    few = set() if len(changes) > 3 else {"three more"}
    return (WRITTEN - changes if kind == "folder" else set()) | few

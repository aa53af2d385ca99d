"""Damaged memory, full disks: found, survived, never silently wrong."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.checkpoint.arena import HEADER_BYTES, Arena, StatePart
from tests.end_to_end.local.jobs import ENDLESS, RunningJob, small
from tests.more import long

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]


def arena_of(job: RunningJob, rank: int) -> Path:
    """The arena of the node with this rank, as its agent holds it open."""
    folder = Path(f"/proc/{job.agent(job.member(rank))}/fd")
    for fd in folder.iterdir():
        if "holdfast-arena" in os.readlink(fd):
            return fd
    raise AssertionError(f"no arena in {folder}")


def flip_everywhere(path: Path) -> int:
    """Flip a byte in the payload of each whole cell of this arena; returns how many."""
    fd = os.open(path, os.O_RDWR)
    flipped = 0
    for part in StatePart:
        for cell in Arena(fd).cells(part):
            header = cell.header()
            if header is None:
                continue
            cell.reserve(header.payload_bytes, touch=False)
            at = HEADER_BYTES + header.payload_bytes // 2
            cell.memory[at] ^= 0xFF
            flipped += 1
    os.close(fd)
    return flipped


@long
def test_a_corrupted_snapshot_is_found_and_replaced_by_the_copies_of_others(home: Path) -> None:
    args = ["--steps", "80"]
    job = small(home, args=args, snapshots={"every_steps": 1000}).start()
    job.wait_step(15)
    assert flip_everywhere(arena_of(job, 1)) >= 3
    os.kill(job.worker(1), signal.SIGKILL)
    job.wait_end()
    (incident,) = job.incidents()
    assert incident.steps_lost >= 14  # back to the snapshot of step 1, which rank 0 has whole
    assert len(job.losses()) == 80
    assert "damaged part of a snapshot" in job.said()


@long
def test_snapshots_that_are_all_corrupted_cost_the_work_but_not_the_job(home: Path) -> None:
    args = ["--steps", "60"]
    job = small(home, args=args, snapshots={"every_steps": 1000}).start()
    job.wait_step(15)
    for rank in (0, 1):
        flip_everywhere(arena_of(job, rank))
    os.kill(job.worker(1), signal.SIGKILL)
    job.wait_end()
    assert len(job.losses()) == 60
    assert "starting from step 0" in job.said()


@long
def test_a_truncated_arena_breaks_one_worker_and_loses_at_most_a_step(home: Path) -> None:
    """Who touches the hole first decides what is seen. A worker that copies its own part dies of
    SIGBUS; when it is the kernel, sending that for gloo, gloo aborts the worker (bad address);
    and receiving a neighbour's part, gloo drops the connection and waits on in silence, so that
    only the neighbour has something to say."""
    job = small(home, args=["--steps", "60"], snapshots={"every_steps": 1}).start()
    job.wait_step(15)
    os.truncate(arena_of(job, 1), 0)
    job.wait_end()
    (incident,) = job.incidents()
    seen = (incident.cause, incident.signal)
    aborted = ("worker-aborted", signal.SIGABRT)
    assert seen in [("worker-crashed", signal.SIGBUS), aborted, ("peer-lost", None)]
    assert incident.steps_lost <= 2
    assert len(job.losses()) == 60


@pytest.fixture
def small_disk(home: Path) -> Iterator[Path]:
    """HOLDFAST_HOME on a real file system of 4 MiB."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m,mode=700", "tmpfs", str(home)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield home
    subprocess.run(["umount", "--lazy", str(home)], check=True)


def test_a_full_disk_stops_neither_training_nor_recovery(small_disk: Path) -> None:
    job = small(small_disk, args=ENDLESS).start()
    done = job.wait_step(5).step or 0
    with (small_disk / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(b"\0" * 4096)
    os.kill(job.worker(1), signal.SIGKILL)
    job.wait_step(done + 10, attempt=2)
    job.finish()
    assert [i.cause for i in job.incidents()] == ["worker-killed"]
    assert (job.out / "final.pt").exists()

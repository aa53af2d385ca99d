"""A node tells how it is and what its workers did last: soon, little, and no secret."""

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.agent.evidence import (
    LINE_CHARS,
    LINES_MAX,
    TAIL_BYTES,
    evidence_of,
    last_lines,
    page_in_words,
)
from holdfast.agent.health.gpus import Gpus
from holdfast.agent.host_state import host_state
from holdfast.agent.kernel_log import kernel_log
from holdfast.agent.reach import WITHIN_S
from holdfast.events import Progress
from holdfast.evidence import PeerAddress
from holdfast.masking import masker
from holdfast.messages import (
    EvidenceReply,
    Stop,
    TakeEvidence,
    WorkerReport,
    WorkersStopped,
)
from tests import native
from tests.agent.conftest import Node
from tests.agent.controller_stub import is_alive, until
from tests.agent.health.recorded import H200_BUSY, LOST, RecordedNvml
from tests.patience import PATIENCE_S

LEAKS = """
import os
print("reading https://me:hunter22@data.example.org/x with", os.environ["DATA_TOKEN"])
raise ValueError("bad batch from https://me:hunter22@data.example.org/x")
"""
SECRET = "very-private-4711"


def test_a_failed_rank_is_told_of_with_its_last_words_and_without_secrets(node: Node) -> None:
    controller, agent = node(LEAKS, fresh=True, env={"DATA_TOKEN": SECRET})
    controller.ready()
    controller.start()
    [pid] = controller.started()
    exited = controller.exited()
    assert exited.error is not None and "hunter22" not in repr(exited)
    assert exited.error.message == "bad batch from https://me:***@data.example.org/x"
    until(lambda: "ValueError" in agent.log() and not is_alive(pid), "its end")
    controller.send(TakeEvidence(number=3, attempt=1, since_s=1.0))
    answers = controller.answers
    found = until(lambda: [a for a in answers if isinstance(a, EvidenceReply)], "evidence")[0]
    assert found.number == 3 and found.found.node == "node-0"
    [one] = found.found.ranks
    assert one.rank == 0 and one.ended in ("an exception", "exit status 1")
    assert one.output[0] == "reading https://me:***@data.example.org/x with ***"
    assert one.output[-1] == f"ValueError: {exited.error.message}"
    assert SECRET not in repr(found) and "hunter22" not in repr(found)
    words = "\n".join(found.found.host)
    assert "memory: " in words and "load: " in words and "disk /dev/shm: " in words


LOCKS_UP = """
import ctypes, os, signal
lock, libc = ctypes.create_string_buffer(64), ctypes.PyDLL(None)
def step():
    libc.pthread_mutex_lock(lock)
    print("stuck", flush=True)
    libc.pthread_mutex_lock(lock)
if os.environ["LOCAL_RANK"] == "5":
    step()
signal.pause()
"""


def test_of_a_rank_that_hung_is_told_where_in_c_it_stood_before_it_was_ended(node: Node) -> None:
    controller, agent = node(LOCKS_UP, workers_per_node=6)
    controller.ready()
    controller.start()
    until(lambda: "stuck" in agent.log(5), "the rank to hang")
    controller.send(Stop(attempt=1, grace_s=PATIENCE_S, hung=5))
    controller.send(TakeEvidence(number=1, attempt=1, since_s=1.0))
    controller.wait_for(WorkersStopped, attempt=1)
    answers = controller.answers
    [found] = until(lambda: [a for a in answers if isinstance(a, EvidenceReply)], "evidence")
    hung, *others = found.found.ranks
    assert hung.rank == 5 and not any(one.native_stack for one in others)
    frames = [frame.partition(" (")[0] for frame in hung.native_stack]
    if not frames:
        assert not native.is_soon_read(), "there was time enough to read them"
        return
    assert any("mutex_lock" in one for one in frames[: frames.index("step")]), hung.native_stack


def test_each_gpu_is_told_of_beside_its_machine_and_one_that_is_lost_as_such() -> None:
    nvml = RecordedNvml(H200_BUSY, {"pci": "00000000:3B:00.0"})
    gpus = Gpus(lambda: nvml)
    readings = {(one.kind, one.device): one for one in gpus.read()}
    nvml.gpus[1]["all"] = LOST
    readings |= {(one.kind, one.device): one for one in gpus.read()}
    found = asyncio.run(evidence_of("n", None, 1.0, [], str, [*readings.values()]))
    first, second = (line for line in found.host if line.startswith("GPU "))
    assert first.startswith("GPU 0000:00:06: ") and "58 °C" in first and "688 W" in first
    assert len(first) <= LINE_CHARS + 3 and "SW Power Cap" in first
    assert second.startswith("GPU 0000:3b:00: ") and "GPU is lost" in second


def test_of_another_attempt_only_the_host_is_told(node: Node) -> None:
    controller, _ = node("print('x')")
    controller.ready()
    controller.start(attempt=2)
    controller.exited(attempt=2)
    controller.send(TakeEvidence(number=1, attempt=1, since_s=1.0))
    answers = controller.answers
    found = until(lambda: [a for a in answers if isinstance(a, EvidenceReply)], "evidence")[0]
    assert found.found.ranks == () and found.found.host


def test_a_node_tries_others_and_tells_whom_it_cannot_reach(node: Node) -> None:
    controller, _ = node("print('x')")
    controller.ready()
    with socket.create_server(("127.0.0.1", 0)) as there, full() as silent:
        peers = (
            PeerAddress(node="there", host="127.0.0.1", port=there.getsockname()[1]),
            PeerAddress(node="silent", host="127.0.0.1", port=silent),
            PeerAddress(node="closed", host="127.0.0.1", port=unused()),
            PeerAddress(node="nowhere", host="255.255.255.255", port=1),
        )
        controller.send(TakeEvidence(number=1, attempt=1, since_s=1.0, peers=peers))
        answers = controller.answers
        found = until(lambda: [a for a in answers if isinstance(a, EvidenceReply)], "evidence")[0]
    told = {one.node: one.trouble for one in found.reached}
    assert (told["there"], told["closed"]) == ("", "")
    assert told["silent"] == f"timed out after {WITHIN_S:g} s"
    assert told["nowhere"] and "timed out" not in told["nowhere"]


@contextlib.contextmanager
def full() -> Iterator[int]:
    """A port whose machine answers nobody any more, as one behind a broken link: its queue of
    connections is full, so the kernel drops what comes."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        port = server.getsockname()[1]
        for _ in range(4):
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", port))
        yield port


def unused() -> int:
    """Nobody listens there."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def test_an_output_without_end_becomes_a_few_short_lines() -> None:
    lines = [f"{n} " + "x" * 2 * LINE_CHARS for n in range(100)]
    told = last_lines("\n".join(lines).encode(), str)
    assert len(told) <= LINES_MAX and told[-1].startswith("99 ")
    assert max(map(len, told)) <= LINE_CHARS + len("...")


def test_a_secret_that_the_cut_goes_through_is_left_out() -> None:
    secret = "s" * 40
    tail = (secret + "\nlast " + "y" * (TAIL_BYTES - 20)).encode()
    told = last_lines(tail, masker({"A_TOKEN": secret}))
    assert "sss" not in "".join(told) and told[-1].startswith("last ")


def test_a_page_reads_as_a_sentence() -> None:
    progress = Progress(step=40, step_ago_s=2.04, data_wait_s=3.0)
    report = WorkerReport(
        rank=0, pid=1, progress=progress, milestones={}, phase="section", section="eval",
        loss=float("nan"), step_time_s=0.05,
    )  # fmt: skip
    told = "step 40 done 2.0 s ago, in eval, loss nan, 0.05 s a step, waited 3.0 s for data"
    assert page_in_words(report) == told
    empty = WorkerReport(rank=0, pid=1, progress=Progress(), milestones={}, phase="starting")
    assert page_in_words(empty) == ""


RECORDS = """\
6,1,1000000,-;systemd[1]: started something
4,2,{old},-;an old warning
3,3,{new},-;Out of memory: Killed process 4711 (python) total-vm:1kB
6,4,{new},-;python[12]: segfault at 0 ip 0 sp 0 error 4 in libc.so
6,5,{new},-;usb 1-1: new device
not a record
"""


def test_of_the_kernel_log_what_is_new_and_says_something_is_kept(tmp_path: Path) -> None:
    """A file gives all records at once, and a pipe too; the device gives one for each read."""
    now = time.monotonic_ns() // 1000
    path = tmp_path / "kmsg"
    found: list[str] = []
    for record in RECORDS.format(old=now - 10**9, new=now).splitlines():
        path.write_text(record)
        found += _once(path)
    assert [line.partition("] ")[2][:13] for line in found] == ["Out of memory", "python[12]: s"]


def _once(path: Path) -> tuple[str, ...]:
    return kernel_log(60.0, str(path)).lines


def test_a_kernel_log_that_cannot_be_read_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = kernel_log(1.0, str(tmp_path / "kmsg"))
    assert found.lines == ()
    assert found.unread.endswith("No such file or directory; there is no journalctl")


def test_a_place_that_is_gone_and_a_machine_without_proc_are_told_of(tmp_path: Path) -> None:
    told = host_state([tmp_path / "gone", tmp_path], tmp_path)
    [gone, there] = [line for line in told if line.startswith("disk ")]
    assert gone.endswith("gone: No such file or directory") and "GiB free" in there
    assert not [line for line in told if line.startswith(("memory", "load"))]

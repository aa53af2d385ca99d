"""Faults hit what they are meant for, refuse what is not a test's, and can be taken back."""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fault_kinds import KINDS
from holdfast.diagnosis import CAUSES
from holdfast.drivers import chaos
from holdfast.drivers.chaos import FAULTS, FILL_BYTES_MAX, Victim
from holdfast.drivers.kubernetes.remote_chaos import REMOTE_FAULTS
from holdfast.drivers.nodes import KnownNode
from holdfast.errors import Error
from tests.patience import until
from tests.warm import holdfast

CONNECTED = """
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
here = socket.create_connection(listener.getsockname())
there, _ = listener.accept()
print("up", flush=True)
try:
    here.recv(1)
except OSError as error:
    print(error.errno, flush=True)
"""
PARTED = """
import os, shutil, socket, subprocess, sys
if shutil.which("ip") is None:
    sys.exit("ip")
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
from holdfast.drivers.chaos_network import Partition
listener = socket.create_server(("127.0.0.1", 0))
other = os.fork()
if not other:
    there = socket.create_connection(listener.getsockname())
    listener.close()
    there.recv(1)
    there.send(b"x")
    there.recv(1)
    os._exit(0)
here, _ = listener.accept()
own = socket.create_connection(listener.getsockname())
own_end, _ = listener.accept()
parted = Partition({os.getpid()}, {other})
here.send(b"g")
own.send(b"y")
own_end.recv(1)
print("inside")
here.settimeout(0.5)
try:
    here.recv(1)
except TimeoutError:
    print("parted")
try:
    socket.create_connection(listener.getsockname(), timeout=5)
except OSError:
    print("refused")
parted.heal()
here.settimeout(60)
print(here.recv(1))
here.send(b"e")
os.waitpid(other, 0)
"""
GROWS = """
import sys
print("up", flush=True)
sys.stdin.readline()
kept = [bytearray(1 << 20) for _ in range(64)]
print("grown", flush=True)
"""


def victim(pid: int, folder: Path = Path("/nonexistent")) -> Victim:
    return Victim(folder, KnownNode(node="n", name="node-0", pid=pid), 0, pid)


Start = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts scripts that say when they are up, and ends them."""
    running: list[subprocess.Popen[str]] = []

    def begin(text: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        running.append(process)
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        return process

    yield begin
    for process in running:
        process.kill()
        process.communicate()


def test_every_fault_expects_causes_that_there_are_and_the_benchmark_knows_the_same() -> None:
    expected = [fault.causes for fault in FAULTS.values()]
    expected += [fault.causes for fault in REMOTE_FAULTS.values()]
    assert {cause for causes in expected for cause in causes} <= set(CAUSES)
    assert len(FAULTS) >= 10
    both = FAULTS.keys() & KINDS.keys() - {
        "disk full",
        "/dev/shm full",
    }  # there a worker is told so
    assert len(both) >= 9 and all(FAULTS[k].causes == KINDS[k].causes for k in both)


def test_a_cut_connection_is_broken_for_the_worker(start: Start) -> None:
    process = start(CONNECTED)
    try:
        FAULTS["connection cut"].inject(victim(process.pid))
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"connections cannot be cut here: {error}")
    assert process.stdout is not None and process.stdout.readline().strip().isdecimal()


def test_a_worker_without_memory_is_killed_and_the_limit_goes(start: Start) -> None:
    process = start(GROWS)
    try:
        undo = FAULTS["out of memory"].inject(victim(process.pid))
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    assert undo is not None
    out, _ = process.communicate("go\n")
    assert (process.returncode, out) == (-signal.SIGKILL, "")
    assert until(lambda: undo() == "the limit is lifted")


def test_what_was_stopped_goes_on_and_one_that_is_gone_is_no_trouble(start: Start) -> None:
    process = start(GROWS)
    undo = FAULTS["SIGSTOP"].inject(victim(process.pid))
    assert undo is not None and undo() == f"process {process.pid} is resumed"
    process.communicate("go\n")
    assert process.returncode == 0 and undo() == ""


def test_what_the_program_said_that_could_not_do_it_is_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the rights for it `ip` ends with status 2, which says nothing."""
    victim = Victim(tmp_path, KnownNode("node-0", "node-0", 1), 0, 1)
    words = ["sh", "-c", "echo Operation not permitted >&2; exit 2"]

    def refused(_: Victim) -> None:
        subprocess.run(words, capture_output=True, check=True)

    monkeypatch.setattr(chaos, "victim_of", lambda *_: victim)
    monkeypatch.setitem(FAULTS, "SIGKILL", FAULTS["SIGKILL"]._replace(inject=refused))
    with pytest.raises(Error) as raised:
        chaos.inject(tmp_path, "SIGKILL")
    assert raised.value.why == f"SIGKILL: {shlex.join(words)}: Operation not permitted"


def test_a_large_disk_is_not_filled_and_nothing_is_left(tmp_path: Path) -> None:
    room = os.statvfs(tmp_path)
    if room.f_bavail * room.f_frsize <= FILL_BYTES_MAX:
        pytest.skip("there is no large disk here")
    with pytest.raises(OSError, match="only small disks are filled"):
        chaos._fill(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_small_disk_is_full_until_that_is_taken_back(tmp_path: Path) -> None:
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(tmp_path)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("no file system can be mounted here")
    try:
        undo = chaos._fill(tmp_path)
        with pytest.raises(OSError, match="No space left"):
            (tmp_path / "more").write_bytes(b"x" * 8192)
        undo()
        assert (tmp_path / "more").write_bytes(b"x" * 8192)
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def test_nothing_goes_from_one_side_to_the_other_until_the_network_is_mended() -> None:
    """In a network of its own, as routes are everybody's."""
    words = ["unshare", "--net", sys.executable, "-c", PARTED]
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    if "unshare" in ran.stderr or "ip" in ran.stdout.splitlines()[:1]:
        pytest.skip(f"a network cannot be parted here: {ran.stderr}")
    assert (ran.returncode, ran.stdout.split()) == (0, ["inside", "parted", "refused", "b'x'"])


def test_the_command_lists_what_there_is_and_refuses_the_rest(home: Path) -> None:
    listed = json.loads(holdfast("chaos", "--list", "--json").stdout)
    assert [one["fault"] for one in listed] == list(FAULTS)
    assert "SIGKILL to a worker" in holdfast("chaos", "--list").stdout
    for words in (["--fault", "meteor"], []):
        run = holdfast("chaos", "any", *words)
        assert run.returncode == 2 and "error[usage]" in run.stderr, run.stderr
    there = json.loads(holdfast("chaos", "--list", "--on", "kubernetes", "--json").stdout)
    assert [one["fault"] for one in there] == list(REMOTE_FAULTS)
    unknown = holdfast("chaos", "any", "--fault", "meteor", "--on", "kubernetes")
    assert unknown.returncode == 2 and "known are: pod deleted" in unknown.stderr
    assert not (home / "jobs").exists()

"""Machines of their own for storage processes: network namespaces behind one bridge, whose links
can be made slow or cut, each with a boot id of its own."""

import contextlib
import ctypes
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.agent.storage.site import Site
from tests.patience import PATIENCE_S

HOLD = ("unshare", "--net", "--mount", "--propagation", "private", "sleep", "infinity")
PACE = "400mbit"
NEWNET = 0x40000000  # CLONE_NEWNET
BOOT_ID = "/proc/sys/kernel/random/boot_id"


def missing() -> str:
    """Why there are none here; empty if there are."""
    needed = ("ip", "tc", "unshare", "nsenter")
    if gone := [name for name in needed if shutil.which(name) is None]:
        return f"{gone[0]} is not installed"
    make = "ip link add name hub type bridge && tc qdisc add dev hub root handle 1: htb default 1"
    sort = "tc filter add dev hub protocol ip parent 1: u32 match ip dst 10.9.0.2 flowid 1:2"
    words = ("unshare", "--net", "--mount", "sh", "-c", f"{make} && {sort}")
    return subprocess.run(words, capture_output=True, text=True, check=False).stderr.strip()


class Namespaces:
    """A bridge and what is plugged into it."""

    def __init__(self, stack: contextlib.ExitStack, folder: Path) -> None:
        self._stack, self._folder, self._pids = stack, folder, list[int]()
        self._hub = self._hold()
        self._ip(self._hub, "link add name hub type bridge")
        self._ip(self._hub, "link set hub up")

    def _hold(self) -> int:
        process = subprocess.Popen(HOLD)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        own, end = os.readlink("/proc/self/ns/net"), time.monotonic() + PATIENCE_S
        while Path(f"/proc/{process.pid}/comm").read_text().strip() != "sleep":
            assert time.monotonic() < end and process.poll() is None
            time.sleep(0.01)
        assert os.readlink(f"/proc/{process.pid}/ns/net") != own
        return process.pid

    def _run(self, pid: int, *words: str) -> None:
        inside = ("nsenter", "--net", "--mount", "--target", str(pid))
        subprocess.run([*inside, *words], check=True, capture_output=True)

    def _ip(self, pid: int, words: str) -> None:
        self._run(pid, "ip", *words.split())

    def plug(self) -> tuple[int, str]:
        """One more machine; the process that holds it open, and its address."""
        pid, number = self._hold(), len(self._pids)
        self._pids.append(pid)
        self._ip(self._hub, f"link add name port{number} type veth peer name eth0 netns {pid}")
        self._ip(self._hub, f"link set port{number} master hub up")
        for words in (f"address add 10.9.0.{number + 1}/24 dev eth0", "link set eth0 up"):
            self._ip(pid, words)
        self._ip(pid, "link set lo up")
        boot_id = self._folder / f"boot-id-{number}"
        boot_id.write_text(f"machine {number}\n")
        self._run(pid, "mount", "--bind", str(boot_id), BOOT_ID)
        return pid, f"10.9.0.{number + 1}"

    def pace(self, number: int, rate: str, *, sends: bool = True, receives: bool = True) -> None:
        """How fast it is."""
        if sends:
            self._shape(self._pids[number], "eth0", rate)
        if receives:
            self._shape(self._hub, f"port{number}", rate)

    def pace_to(self, a: int, b: int, rate: str) -> None:
        """How fast the first sends to the second, besides."""
        self._class(self._pids[a], "eth0", "1:2", rate)
        match = f"protocol ip parent 1: u32 match ip dst 10.9.0.{b + 1} flowid 1:2"
        self._tc(self._pids[a], f"filter add dev eth0 {match}")

    def _shape(self, pid: int, device: str, rate: str) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):  # there is none yet
            self._tc(pid, f"qdisc del dev {device} root")
        self._tc(pid, f"qdisc add dev {device} root handle 1: htb default 1")
        self._class(pid, device, "1:1", rate)

    def _class(self, pid: int, device: str, name: str, rate: str) -> None:
        self._tc(
            pid, f"class add dev {device} parent 1: classid {name} htb rate {rate} quantum 9000"
        )

    def _tc(self, pid: int, words: str) -> None:
        self._run(pid, "tc", *words.split())

    def cut(self, a: int, b: int) -> None:
        """Nothing passes from the first to the second."""
        self._ip(self._pids[a], f"route add blackhole 10.9.0.{b + 1}")

    def unplug(self, number: int) -> None:
        """Nothing passes at all."""
        self._ip(self._hub, f"link set port{number} down")


def listening(pid: int, address: str) -> socket.socket:
    """A socket of that network."""
    made: list[socket.socket] = []

    def enter() -> None:
        with Path(f"/proc/{pid}/ns/net").open() as file:
            assert ctypes.CDLL(None).setns(file.fileno(), NEWNET) == 0
        made.append(socket.create_server((address, 0)))

    thread = threading.Thread(target=enter)  # the rest of this process stays where it is
    thread.start()
    thread.join()
    return made[0]


@contextmanager
def machines(count: int, folder: Path) -> Iterator[tuple[Namespaces, list[Site]]]:
    """So many, each with a storage process, and as fast as a small machine can shape."""
    with contextlib.ExitStack() as stack:
        network = Namespaces(stack, folder)
        made = []
        for number in range(count):
            pid, address = network.plug()
            network.pace(number, PACE)
            (folder / str(number)).mkdir()
            site = Site(folder / str(number))
            stack.callback(site.close)
            site.move(pid, listening(pid, address))
            made.append(site)
        for site in made:
            site.start()
        yield network, made

"""A network that has come apart between processes of this machine, until it is mended.

Whatever would go from one side to the other is dropped by routing rules (`ip rule`, of iproute2):
packets of connections that there are, and whatever wants to connect to a port on which the one side
listens. Nobody is told, as with a switch that fails: connections stay open and carry nothing. The
kernel asks its table of local addresses first, so that is asked after these rules meanwhile. This
needs the right to change routes; firewalls are not touched.
"""

import contextlib
import errno
import shutil
import subprocess
from collections.abc import Iterable

import psutil

DROP, LOCAL = 10, 100  # priorities of what is dropped, and of local addresses meanwhile
RULE_S = 10.0
Ends = tuple[int, int]  # ports of the nearer and the farther end


class Partition:
    """Two sides that do not reach each other. Raises `OSError`, or `CalledProcessError`."""

    def __init__(self, here: Iterable[int], there: Iterable[int]) -> None:
        """Part the processes with these ids."""
        ours, listens = _sockets(here)
        theirs, _ = _sockets(there)
        crossing = ours & {(far, near) for near, far in theirs}
        inside = ours & {(far, near) for near, far in ours}
        self._rules = [
            *(_rule(DROP + 1, "blackhole", dport=port) for port in listens),
            *(_rule(DROP, "lookup local", sport=near, dport=far) for near, far in inside),
            *(
                _rule(DROP, "blackhole", sport=a, dport=b)
                for near, far in crossing
                for a, b in ((near, far), (far, near))
            ),
        ]
        if not (crossing or listens):
            raise OSError(errno.ENOTCONN, "the node has no connections and no listening ports")
        _ip("add", f"pref {LOCAL} lookup local")
        _ip("del", "pref 0 lookup local")
        try:
            for rule in self._rules:
                _ip("add", rule)
        except BaseException:
            self.heal()
            raise

    def heal(self) -> str:
        """Everybody reaches everybody."""
        _ip("add", "pref 0 lookup local")
        for rule in (*self._rules, f"pref {LOCAL} lookup local"):
            with contextlib.suppress(subprocess.CalledProcessError):  # it was never added
                _ip("del", rule)
        return "the partition is removed"


def _rule(priority: int, action: str, **ports: int) -> str:
    return " ".join(
        (f"pref {priority} ipproto tcp", *(f"{k} {p}" for k, p in ports.items()), action)
    )


def _ip(verb: str, rule: str) -> None:
    program = shutil.which("ip")
    if program is None:
        raise FileNotFoundError(errno.ENOENT, "`ip`, whose rules make partitions, is not installed")
    words = [program, "rule", verb, *rule.split()]
    subprocess.run(words, capture_output=True, timeout=RULE_S, check=True)


def _sockets(pids: Iterable[int]) -> tuple[set[Ends], set[int]]:
    """Connections of these processes, and the ports on which they listen."""
    connected, listens = set(), set()
    for pid in pids:
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            for found in psutil.Process(pid).net_connections("tcp"):
                if found.status == psutil.CONN_LISTEN:
                    listens.add(found.laddr.port)
                elif found.raddr:
                    connected.add((found.laddr.port, found.raddr.port))
    return connected, listens

"""Counters of network interfaces and of RDMA ports.

Watched are interfaces with a device behind them and those that have a default route (a pod's, a
bond); bridges and the ends of other containers' links come and go, and tell nothing about us.
"""

from pathlib import Path

from holdfast.agent.health.provider import EVERY_S, Missing, number_of, sum_of, text_of
from holdfast.detection.health import Reading

LINK_ERRORS = ("rx_errors", "tx_errors")
DROPS = ("rx_dropped", "tx_dropped")
RDMA_ERRORS = (
    "symbol_error",
    "port_rcv_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
)
ACTIVE = "ACTIVE"


class Interfaces:
    """Those of this network namespace that are up."""

    name = "network interfaces"
    stalled = None
    every_s = EVERY_S

    def __init__(self, root: Path) -> None:
        self._root = root
        self._folder = root / "sys/class/net"

    def read(self) -> list[Reading]:
        """Of each: how often its link was lost, errors and drops."""
        routed = _with_default_route(self._root / "proc/net/route")
        found: list[Reading] = []
        for one in sorted(self._folder.iterdir()):
            carrier = number_of(one / "carrier")  # not readable while it is set down
            if carrier is not None and ((one / "device").exists() or one.name in routed):
                found += _link(one, carrier)
        return found


def _link(one: Path, carrier: int) -> list[Reading]:
    name, counters = one.name, one / "statistics"
    downs = number_of(one / "carrier_down_count")
    changes = number_of(one / "carrier_changes") or 0
    lost = downs if downs is not None else changes // 2 + (changes % 2 and not carrier)
    speed = number_of(one / "speed") or 0
    rate = f", {speed} Mbit/s" if speed > 0 else ""
    state = f"{'up' if carrier else 'down'}{rate}, lost {lost} times since the start"
    errors, drops = sum_of(counters, *LINK_ERRORS), sum_of(counters, *DROPS)
    return [
        Reading("link-down", float(lost), name, state),
        Reading("link-errors", float(errors), name, f"{errors:,} errors"),
        Reading("link-drops", float(drops), name, f"{drops:,} packets dropped"),
    ]


def _with_default_route(table: Path) -> set[str]:
    rows = (line.split() for line in text_of(table).splitlines()[1:])
    return {row[0] for row in rows if len(row) > 7 and row[1] == row[7] == "00000000"}


class RdmaPorts:
    """Of InfiniBand and RoCE adapters."""

    name = "RDMA ports"
    stalled = None
    every_s = EVERY_S

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self) -> list[Reading]:
        """Of each port: whether it is active, how often its link was lost, and errors."""
        found: list[Reading] = []
        for port in sorted(self._folder.glob("*/ports/*")):
            name, counters = f"{port.parent.parent.name}/{port.name}", port / "counters"
            state = text_of(port / "state").partition(":")[2].strip()
            rate = text_of(port / "rate")
            downs = sum_of(counters, "link_downed")
            errors = sum_of(counters, *RDMA_ERRORS)
            found += [
                Reading("rdma-inactive", float(state != ACTIVE), name, f"{state}, {rate}"),
                Reading("rdma-down", float(downs), name, f"{downs} times since the start"),
                Reading("rdma-errors", float(errors), name, f"{errors:,} errors"),
            ]
        return found


def find(root: Path) -> list[Interfaces | RdmaPorts | Missing]:
    """What this machine has of both."""
    links, ports = root / "sys/class/net", root / "sys/class/infiniband"
    return [
        Interfaces(root) if links.is_dir() else Missing(Interfaces.name, f"there is no {links}"),
        RdmaPorts(ports) if ports.is_dir() else Missing(RdmaPorts.name, f"there is no {ports}"),
    ]

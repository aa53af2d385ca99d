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
RDMA_RETRIES = (
    "packet_seq_err",
    "out_of_sequence",
    "implied_nak_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "roce_adp_retrans",
)
"""In `hw_counters`, where a driver has them: what was lost on the way, and sent again."""
RDMA_CONGESTION = ("np_cnp_sent", "rp_cnp_handled")  # there as well: notifications, both ways
RDMA_WORD_BYTES = 4  # what `port_xmit_data` counts
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
    state = f"{'up' if carrier else 'down'}{rate}, {_lost(lost)}"
    errors, drops = sum_of(counters, *LINK_ERRORS), sum_of(counters, *DROPS)
    return [
        Reading("link-down", float(lost), name, state),
        Reading("link-errors", float(errors), name, f"{errors:,} errors"),
        Reading("link-drops", float(drops), name, f"{drops:,} packets dropped"),
        *_moved("link", name, number_of(counters / "rx_bytes"), number_of(counters / "tx_bytes")),
    ]


def _lost(times: int) -> str:
    often = "once" if times == 1 else f"{times} times"
    return f"lost {often} since the start" if times else "stable"


def _moved(kind: str, name: str, received: int | None, sent: int | None) -> list[Reading]:
    """Bytes, as far as they are counted."""
    found = (("received", received), ("sent", sent))
    return [
        Reading(f"{kind}-{way}", float(count), name, f"{_size(count)} {way}")
        for way, count in found
        if count is not None
    ]


def _size(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"


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
                *_words(counters, name),
                *_of_hardware(port / "hw_counters", name),
            ]
        return found


def _words(counters: Path, name: str) -> list[Reading]:
    received, sent = (number_of(counters / f"port_{way}_data") for way in ("rcv", "xmit"))
    return _moved(
        "rdma", name,
        received * RDMA_WORD_BYTES if received is not None else None,
        sent * RDMA_WORD_BYTES if sent is not None else None,
    )  # fmt: skip


def _of_hardware(counters: Path, name: str) -> list[Reading]:
    if not counters.is_dir():
        return []
    retries, congestion = sum_of(counters, *RDMA_RETRIES), sum_of(counters, *RDMA_CONGESTION)
    return [
        Reading("rdma-retries", float(retries), name, f"{retries:,} sequence errors and timeouts"),
        Reading("rdma-congestion", float(congestion), name, f"{congestion:,} notifications"),
    ]


def find(root: Path) -> list[Interfaces | RdmaPorts | Missing]:
    """What this machine has of both."""
    links, ports = root / "sys/class/net", root / "sys/class/infiniband"
    return [
        Interfaces(root) if links.is_dir() else Missing(Interfaces.name, f"there is no {links}"),
        RdmaPorts(ports) if ports.is_dir() else Missing(RdmaPorts.name, f"there is no {ports}"),
    ]

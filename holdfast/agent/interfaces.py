"""Which network interface has an address: so that gloo and NCCL take the one that was meant.

Left alone, gloo takes the address that the machine's own name resolves to, which with the host's
network is often a loopback address, and NCCL takes every interface that is neither loopback nor
docker's, bridges to nowhere included. The address of the pod is the one that other nodes can reach.
"""

import fcntl
import ipaddress
import socket
import struct
from pathlib import Path

SIOCGIFADDR = 0x8915
NAME_BYTES = 15


def socket_variables(address: str) -> dict[str, str]:
    """Variables that tell gloo and NCCL the interface of this address; none for loopback."""
    name = interface_of(address)
    return {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": f"={name}"} if name else {}


def interface_of(address: str) -> str | None:
    """The interface with this address as its first one; None for loopback and strangers."""
    try:
        wanted = ipaddress.ip_address(address)
    except ValueError:
        return None
    if wanted.is_loopback:
        return None
    if wanted.version == 6:
        return _with_six(wanted.packed.hex())
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if _first_four(name) == wanted.packed), None)


def _first_four(name: str) -> bytes | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("256s", name.encode()[:NAME_BYTES])
        try:
            return fcntl.ioctl(sock.fileno(), SIOCGIFADDR, request)[20:24]
        except OSError:  # it has none
            return None


def _with_six(wanted: str) -> str | None:
    try:
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
    except OSError:
        return None
    return next((line.split()[5] for line in lines if line.startswith(wanted)), None)

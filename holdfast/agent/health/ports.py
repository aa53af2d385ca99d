"""Ports of the job that somebody else on this machine listens at.

Any other port is used instead; but a firewall between the machines may let only those through that
the job names, and then other nodes do not reach it. So it is told as a condition of the node, which
is over once a port of the job is free again.
"""

from collections.abc import Sequence

from holdfast.agent.notes import note
from holdfast.detection.health import Reading

KIND = "ports-taken"


class TakenPorts:
    """What was used instead, by key of `network.ports`; a provider of health."""

    name = "ports of the job"
    every_s = 3.0
    stalled: Reading | None = None

    def __init__(self) -> None:
        self._told: dict[str, str] = {}

    def used(self, address: str, ports: Sequence[int], port: int, key: str) -> None:
        """This port is used of those under `network.ports.KEY`, or another one as all are taken."""
        if not any(ports):
            return
        many = f"ports {ports[0]} to {ports[-1]} of {address} are"
        taken = many if len(ports) > 1 else f"port {ports[0]} of {address} is"
        told = f"{taken} taken by another process: port {port} is used instead"
        self._told[key] = "" if port in ports else told
        if self._told[key]:
            note(f"agent: {told} (network.ports.{key}); other nodes must be able to reach it")

    def read(self) -> list[Reading]:
        """One for each key."""
        return [
            Reading(KIND, float(bool(told)), f"network.ports.{key}", told)
            for key, told in list(self._told.items())
        ]

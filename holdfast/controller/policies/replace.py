"""Restart the workers where they are, or replace the node that failed.

A restart in place is the cheapest cure of a passing fault and no cure of a broken machine: then the
next attempt dies at the same place. So the first device fault of a node is forgiven and the
second within a day is not; by chance alone it would come to one node in a hundred (6.5 faults per
1,000 node-days). Which count is best was found by simulation: docs/decisions/0007.
"""

import math
from collections.abc import Sequence

MACHINE_CAUSES = frozenset(
    ("device-error", "device-lost", "worker-crashed", "hardware-fault", "corruption")
)
DOUBTFUL = MACHINE_CAUSES | {"hang", "worker-aborted", "peer-lost"}
"""Causes that may lie in a machine, whether the verdict says so or not."""
NAMING = frozenset(("hang",))
"""Those whose verdict names the machine itself rather than one that suffers from it."""
IN_GROUPS = frozenset(("hang", "corruption"))
"""Those that a machine brings about which is bad only in a group, and that then name nobody."""
LOST = "device-lost"  # left at once: a restart brings no device back
STRAGGLER = "straggler"  # replaced at once, where the job asks for it
WINDOW_S = 86_400.0
REPLACE_AFTER = 2  # faults of one node within the window
CORDONS_SHARE = 0.1  # of a job's nodes within the window
CORDONS_MIN = 3
RACK_SHARE = 0.5  # of the nodes that a job has in a rack, within the window
REMOVALS_S = 3600.0
REMOVALS_SHARE = 0.01  # of a job's nodes within that time
REMOVALS_MIN = 4
REMOVALS_OF_RACK_MIN = 2  # a second node of a small rack may well be bad by itself
ROUNDING_S = 0.001  # of sums of seconds since the epoch


def blames_machine(cause: str) -> bool:
    """Whether a verdict of this cause counts against the node it happened on."""
    return cause in MACHINE_CAUSES


def recent(faults: Sequence[float], now: float) -> list[float]:
    """The faults (times in seconds) that still count."""
    return [at for at in faults if at > now - WINDOW_S]


def wanted(faults: int, limit: int, *, spares: int, fruitless: int) -> bool:
    """Whether to replace a node with this many recent faults; `limit` 0 means never.

    Without a spare a doubtful node is better than none while the job makes progress. Once all its
    faults but the first have come in attempts without any (`fruitless` in a row), it will fail the
    next one as well: then waiting for another one, or training without it, is better.
    """
    return 0 < limit <= faults and (spares > 0 or fruitless >= max(1, limit - 1))


def cordons_most(nodes: int) -> int:
    """How many machines a job of this size may cordon within the window: nobody uses them then.

    At the highest failure rate that is published (6.5 per 1,000 node-days, RSC-1) 12,500 nodes lose
    81 a day, a fifteenth of this. Where it is more, something else is wrong (a driver, an image,
    the network, or our own judgement), and one job that fails again and again must not take the
    machines of a cluster from everybody. It may leave them itself, as far as it has spares.
    """
    return max(CORDONS_MIN, math.ceil(CORDONS_SHARE * nodes))


def most_of_rack(nodes: int) -> int:
    """How many of them, of a rack in which the job has, or has had, so many nodes.

    Nodes of a rack share power, cooling and a switch. Where more than half of them fail within a
    day, that is what is broken rather than each of them, and other nodes of the rack are no better.
    """
    return max(1, math.ceil(RACK_SHARE * nodes))


def removals_most(nodes: int) -> int:
    """How many nodes a job of this size may leave within `REMOVALS_S` because they are blamed.

    At the highest failure rate that is published (see `cordons_most`) it is 37 times as many as are
    to be expected. A loop of faults that comes along to every new machine then costs a cluster a
    few nodes in an hour, whatever its verdicts say. Nodes that are gone are replaced all the same.
    """
    return max(REMOVALS_MIN, math.ceil(REMOVALS_SHARE * nodes))

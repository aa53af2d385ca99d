"""Who gets compiled code where: spares from members, so that whoever takes over need not compile.

Each node says what lies in its folder by a stamp. A node that trains has compiled what the training
needs; one that does not, on a machine of the same kind and with another folder, is told where it
lies: one member for each stamp, since those that have compiled the same have the same, and another
one each time, so that the spares of a large job do not all ask one node. The code itself passes
from node to node and never through here.
"""

from collections import defaultdict
from collections.abc import Callable

from holdfast.compiled_code import CompiledHere, TakeCompiled
from holdfast.controller import State

STAMPS_MAX = 16  # that a node is told of: parts of a pipeline compile different code


class CompiledOffers:
    """Of one job. Telemetry: nothing of it is journaled, and all of it is said again on each
    connection."""

    def __init__(self, state: State, send: Callable[[str, TakeCompiled], None]) -> None:
        self._state, self._send = state, send
        self._here: dict[str, CompiledHere] = {}
        self._offered: dict[str, set[str]] = defaultdict(set)  # stamps, by node
        self._turns: dict[str, int] = defaultdict(int)  # times that a stamp was offered

    def heard(self, node: str, here: CompiledHere) -> None:
        """What lies on this node now."""
        self._here[node] = here
        members = {*self._state.ranks.values()}
        waiting = [one for one in self._here if one not in members]
        for one in waiting if node in members else [one for one in waiting if one == node]:
            self._offer(one)

    def gone(self, node: str) -> None:
        """Its connection has come or gone: what it knows is said anew."""
        self._here.pop(node, None)
        self._offered.pop(node, None)

    def _offer(self, node: str) -> None:
        offered = self._offered[node]
        for stamp, members in self._by_stamp(self._here[node]).items():
            if stamp in offered or len(offered) >= STAMPS_MAX:
                continue
            offered.add(stamp)
            member = members[self._turns[stamp] % len(members)]
            self._turns[stamp] += 1
            name = self._state.nodes[member].name if member in self._state.nodes else member
            self._send(node, TakeCompiled(name=name, address=self._here[member].address))

    def _by_stamp(self, mine: CompiledHere) -> dict[str, list[str]]:
        """Members that have something else than this node, and that fits it."""
        found: dict[str, list[str]] = defaultdict(list)
        for _, member in sorted(self._state.ranks.items()):
            theirs = self._here.get(member)
            if theirs is None or theirs.stamp in ("", mine.stamp):
                continue
            if theirs.machine == mine.machine and theirs.folder != mine.folder:
                found[theirs.stamp].append(member)
        return found

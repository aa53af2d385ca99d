"""Has the spares of a job check their machines once more, because somebody asks.

A spare may have waited for weeks. One that fails is told as unfit, so it is replaced before it is
needed; one that has got a rank meanwhile keeps it. Pure: sending only queues, and times are the
caller's.
"""

import itertools
from collections.abc import Callable, Collection

from holdfast.controller import State
from holdfast.events import NodeUnfit
from holdfast.messages import CheckMachine, ChecksReply, MachineChecked

NODE_S = 330.0  # agents give up their checks after 300 s

Reply = Callable[[ChecksReply], None]


class SpareChecks:
    """One collection at a time; whoever asks while it is under way hears the same."""

    def __init__(
        self, state: State, send: Callable[[str, CheckMachine], None], put: Callable[..., None]
    ) -> None:
        self._state, self._send, self._put = state, send, put
        self._numbers = itertools.count(1)
        self._number = 0
        self._replies: list[Reply] = []
        self._asked: dict[str, float] = {}  # who has not answered yet, since when
        self._names: dict[str, str] = {}
        self._found: dict[str, str] = {}
        self._missing: list[str] = []

    def ask(self, connected: Collection[str], now: float, reply: Reply) -> None:
        """What the machines of the spares are like."""
        self._replies.append(reply)
        if len(self._replies) > 1:
            return
        self._number, self._found, self._missing = next(self._numbers), {}, []
        self._names = {node: self._state.nodes[node].name for node in self._state.spares}
        for node, name in self._names.items():
            if node in connected:
                self._asked[node] = now
                self._send(node, CheckMachine(number=self._number))
            else:
                self._missing.append(name)
        self._tell_if_complete()

    def answered(self, node: str, answer: MachineChecked) -> None:
        """What a node says."""
        if answer.number != self._number or self._asked.pop(node, None) is None:
            return
        self._found[self._names[node]] = answer.why
        if answer.why:
            self._put(NodeUnfit(node=node, why=answer.why))
        self._tell_if_complete()

    def gone(self, node: str) -> None:
        """Its connection is gone, and the answer with it."""
        if self._asked.pop(node, None) is not None:
            self._missing.append(self._names[node])
            self._tell_if_complete()

    def look(self, now: float) -> None:
        """Who has had enough time is not waited for any longer."""
        for node in [node for node, since in self._asked.items() if now - since >= NODE_S]:
            self.gone(node)

    def _tell_if_complete(self) -> None:
        if not self._asked:
            replies, self._replies = self._replies, []
            for reply in replies:
                reply(ChecksReply(found=self._found, missing=tuple(sorted(self._missing))))

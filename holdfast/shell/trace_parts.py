"""Parts of traces, from the nodes that have them to whoever asks in a cluster.

Each part is asked for by itself, so nothing large waits here, and who asks decides how much comes.
Pure: sending only queues, and times are the caller's.
"""

from collections.abc import Callable, Collection
from typing import NamedTuple

from holdfast.controller import State
from holdfast.profiles import TakeTracePart, TracePart, TracePartRequest

PART_S = 20.0  # for a node to read one

Reply = Callable[[TracePart], None]


class _Waiting(NamedTuple):
    """Somebody who has asked."""

    node: str
    part: TakeTracePart
    until: float
    reply: Reply


class TraceParts:
    """Who waits for which part."""

    def __init__(self, state: State, send: Callable[[str, TakeTracePart], None]) -> None:
        self._state, self._send = state, send
        self._waiting: list[_Waiting] = []

    def ask(
        self, wish: TracePartRequest, connected: Collection[str], now: float, reply: Reply
    ) -> None:
        """Somebody wants one."""
        named = (node for node, one in self._state.nodes.items() if one.name == wish.node)
        node = next(named, None)
        if node is None or node not in connected:
            away = "is gone, and its trace with it" if node is None else "is not connected"
            reply(_none(wish.part, f"its node {away}"))
            return
        self._waiting.append(_Waiting(node, wish.part, now + PART_S, reply))
        self._send(node, wish.part)

    def answered(self, node: str, answer: TracePart) -> None:
        """What a node says."""
        asked = answer.trace, answer.offset
        self._end(lambda one: (one.node, one.part.trace, one.part.offset) == (node, *asked), answer)

    def gone(self, node: str) -> None:
        """Its connection is gone, and the answer with it."""
        self._end(lambda one: one.node == node, "the connection to its node was lost")

    def look(self, now: float) -> None:
        """Who has had enough time is not waited for any longer."""
        self._end(lambda one: now >= one.until, "its node did not answer in time")

    def _end(self, meant: Callable[[_Waiting], bool], told: TracePart | str) -> None:
        over = [one for one in self._waiting if meant(one)]
        self._waiting = [one for one in self._waiting if one not in over]
        for one in over:
            one.reply(_none(one.part, told) if isinstance(told, str) else told)


def _none(part: TakeTracePart, why: str) -> TracePart:
    return TracePart(trace=part.trace, offset=part.offset, why=why)

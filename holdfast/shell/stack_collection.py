"""Asks the members of a job for the stacks of their workers, and joins what they say as it comes.

A few hundred nodes are asked at a time, so that a large job does not answer all at once; few at
first, and two for each that answers, so that answers come spread out. Who does not answer in time
is named instead. Pure: sending only queues, and times are the caller's.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping

import msgspec

from holdfast.collectives import JoinedLogs
from holdfast.evidence import PeerAddress, PeerReach, Traffic
from holdfast.messages import Stacks, StacksReply, TakeStacks
from holdfast.stacks import NATIVE_S, JoinedStacks, StackGroup

AT_ONCE = 128  # nodes that are asked when it begins
WAVE = 512  # that have been asked and have not answered, at most
NODE_S = 12.0  # for one of them: agents give up a process after 5 s, and try twice
REPLY_BYTES = 3 << 20  # of an answer, below what one message may have

Reply = Callable[[StacksReply], None]
Peers = Mapping[str, tuple[PeerAddress, ...]]
NOBODY: Peers = {}


class StackCollection:
    """One collection at a time; whoever asks while it is under way hears the same.

    `numbers` are those of its questions, of which no other collection has any.
    """

    def __init__(
        self,
        send: Callable[[str, TakeStacks], None],
        numbers: Iterator[int],
        looks: int = 1,
        apart_s: float = 0.0,
        *,
        native: bool = False,
        rank: int | None = None,
    ) -> None:
        self._send, self._numbers = send, numbers
        self._question = TakeStacks(
            number=0, looks=looks, apart_s=apart_s, native=native, rank=rank
        )
        self._number = 0
        self._replies: list[Reply] = []
        self._waiting: deque[str] = deque()
        self._asked: dict[str, float] = {}  # since when
        self._room = AT_ONCE
        self._groups, self._logs = JoinedStacks(), JoinedLogs()
        self._missing: list[str] = []
        self._peers: Peers = {}
        self.reached: dict[str, tuple[PeerReach, ...]] = {}  # by node, of this collection
        self.traffic: dict[str, tuple[Traffic, ...]] = {}  # likewise

    def ask(
        self,
        members: Collection[str],
        connected: Collection[str],
        now: float,
        reply: Reply,
        peers: Peers = NOBODY,
    ) -> None:
        """What the workers of these nodes do, and whether they reach these peers."""
        self._replies.append(reply)
        if len(self._replies) > 1:
            return
        self._number = next(self._numbers)
        self._groups, self._logs = JoinedStacks(), JoinedLogs()
        self._peers, self.reached, self.traffic = peers, {}, {}
        self._room = AT_ONCE
        self._waiting = deque(node for node in members if node in connected)
        self._missing = [node for node in members if node not in connected]
        self._go_on(now)

    @property
    def asks(self) -> bool:
        """Whether a collection is under way."""
        return bool(self._replies)

    def abandon(self) -> None:
        """Whatever is said now is not waited for, and nobody hears of it."""
        self._number, self._replies = 0, []
        self._waiting.clear()
        self._asked.clear()

    def answered(self, node: str, answer: Stacks, now: float) -> None:
        """What a node says."""
        if answer.number == self._number and self._asked.pop(node, None) is not None:
            self._room = min(WAVE, self._room + 1)
            self._groups.add(answer.groups)
            self._logs.add(answer.collectives)
            if answer.reached:
                self.reached[node] = answer.reached
            self.traffic[node] = answer.traffic
            self._go_on(now)

    def gone(self, node: str, now: float) -> None:
        """Its connection is gone, and the answer with it."""
        if self._asked.pop(node, None) is not None:
            self._missing.append(node)
            self._go_on(now)

    def look(self, now: float) -> None:
        """Who has had enough time is not waited for any longer."""
        node_s = NODE_S + NATIVE_S * self._question.native
        late = [node for node, since in self._asked.items() if now - since >= node_s]
        for node in late:
            del self._asked[node]
        if late:
            self._missing += late
            self._go_on(now)

    def _go_on(self, now: float) -> None:
        while self._waiting and len(self._asked) < self._room:
            node = self._waiting.popleft()
            self._asked[node] = now
            peers = self._peers.get(node, ())
            asked = msgspec.structs.replace(self._question, number=self._number, peers=peers)
            self._send(node, asked)
        if not self._asked:
            replies, self._replies = self._replies, []
            told = StacksReply(
                groups=fitting(self._groups.groups()),
                missing=tuple(sorted(self._missing)),
                collectives=self._logs.logs(),
            )
            self._groups, self._logs = JoinedStacks(), JoinedLogs()  # they may be large
            for reply in replies:
                reply(told)


def fitting(groups: tuple[StackGroup, ...], limit: int = REPLY_BYTES) -> tuple[StackGroup, ...]:
    """As much as one message may have: main threads before others, small groups before large."""
    if _size(groups) <= limit:
        return groups
    main = tuple(msgspec.structs.replace(one, threads=one.threads[:1], below=()) for one in groups)
    while _size(main) > limit:
        main = main[: len(main) // 2]
    return main


def _size(groups: tuple[StackGroup, ...]) -> int:
    return len(msgspec.msgpack.encode(groups))

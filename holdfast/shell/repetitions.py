"""Has groups of nodes repeat a step while nothing trains, because the controller says so.

Which groups is decided by `diagnosis.repeating`; here they are asked, those of a round at the same
time, as they have no node in common. The first node of a group says where its ranks meet, then the
others begin. What became of it is one fact, and an answer to whoever has asked for it. Whoever
leaves meanwhile, or does not answer, ends it: its group has failed, or nothing is known any more.
Pure: sending only queues, and times are the caller's.
"""

import itertools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from holdfast.actions import CheckNodes, StartAttempt
from holdfast.controller import State
from holdfast.diagnosis.group_testing import Group, Located, TryGroups
from holdfast.diagnosis.repeating import compared, comparison, isolation
from holdfast.diagnosis.repetition import Digests
from holdfast.digests import StepsToRepeat
from holdfast.events import NodesChecked, RepetitionRequested
from holdfast.messages import GroupOpened, RepeatStep, ReplayReply, Start, StepRepeated

GROUP_S = 630.0  # agents give up a repetition after 600 s

ReplayAnswer = Callable[[ReplayReply], None]


@dataclass
class _Group:
    """Nodes that repeat the step together, by their names."""

    nodes: Group
    since: float
    waiting: set[str]  # have not answered yet
    digests: dict[int, dict[str, str]] = field(default_factory=dict)
    why: str = ""  # it has failed


@dataclass
class _Round:
    """An order, and what has become of it so far."""

    order: CheckNodes
    wish: StepsToRepeat
    begun: StartAttempt
    ids: dict[str, str]  # of nodes, by name
    members: Group  # names, like all that is compared
    others: Group
    restore_below: int | None = None  # now; when the attempt began it may have been another
    bad_steps: tuple[tuple[int, int], ...] = ()  # likewise
    away: set[str] = field(default_factory=set)  # ids of those that have yet to connect
    until: float = 0.0  # that is waited for
    tried: dict[Group, list[Digests | None]] = field(default_factory=dict)
    running: dict[int, _Group] = field(default_factory=dict)
    told: tuple[dict[int, str], dict[int, str]] = field(default_factory=lambda: ({}, {}))
    whys: list[str] = field(default_factory=list)

    @property
    def elsewhere(self) -> Group:
        """The members with the others in the place of the first of them."""
        rest = (node for node in self.members if node not in self.others)
        return (*self.others, *rest)[: len(self.members)] if self.others else ()

    def next(self) -> TryGroups | Located | None:
        """What is to be tried now, or what is known."""
        if self.wish.isolate:
            return isolation(self.members, self.wish.unit, self.tried)
        return comparison(self.members, self.elsewhere, self.tried)


class SendRepeat(Protocol):
    """Queues a message for a node."""

    def __call__(self, node: str, message: RepeatStep, /) -> None: ...


class Repetitions:
    """At most one order at a time."""

    def __init__(
        self, state: State, send: SendRepeat, put: Callable[..., None], reconnect_s: float
    ) -> None:
        self._state, self._send, self._put = state, send, put
        self._reconnect_s = reconnect_s
        self._numbers = itertools.count(1)
        self._round: _Round | None = None
        self._replies: dict[str, ReplayAnswer] = {}  # by wish

    def ask(self, wish: StepsToRepeat, reply: ReplayAnswer) -> None:
        """Somebody wants to know; the controller stops the attempt first. `others` are names."""
        state = self._state
        if wish.id in state.repeat_wishes:  # told by a former controller: it goes on, or is over
            if state.repeating is not None and state.repeating.id == wish.id:
                self._replies[wish.id] = reply
            return
        ids = {node.name: node.node for node in state.nodes.values()}
        if refusal := _refusal(state, wish, ids):
            reply(ReplayReply(refused=refusal))
            return
        self._replies[wish.id] = reply
        others = tuple(ids[name] for name in wish.others)
        self._put(RepetitionRequested(wish=msgspec.structs.replace(wish, others=others)))

    def obey(self, order: CheckNodes, connected: Collection[str], now: float) -> None:
        """Begin; an order that comes again, of a later controller, begins anew, once the nodes
        have found that one."""
        begun, wish = self._state.start, order.repeat
        assert begun is not None and wish is not None, "an attempt was stopped for it"
        members, others = (tuple(map(self._name, nodes)) for nodes in (order.nodes, wish.others))
        ids = dict(zip((*members, *others), (*order.nodes, *wish.others), strict=True))
        doing = self._round = _Round(
            *(order, wish, begun, ids, members, others),
            *(self._state.restore_below, self._state.bad_steps),
        )
        self._refuse_all_but(wish.id)
        if not members or (wish.isolate and len(members) % wish.unit):
            size = f"its {len(members)} nodes are not whole replicas of {wish.unit} nodes each"
            self._tell(doing, {}, ReplayReply(refused=size))
            return
        doing.away, doing.until = set(ids.values()), now + self._reconnect_s
        self.look(now, connected)

    def answered(self, node: str, answer: GroupOpened | StepRepeated, now: float) -> None:
        """What a node says."""
        doing = self._round
        group = doing.running.get(answer.number) if doing is not None else None
        name = self._name(node)
        if doing is None or group is None or name not in group.waiting:
            return
        if isinstance(answer, GroupOpened):
            for rank, other in enumerate(group.nodes[1:], 1):
                self._send(doing.ids[other], _message(doing, answer.number, group, rank, answer))
            return
        group.waiting.discard(name)
        group.digests |= answer.digests
        group.why = group.why or answer.why
        for known, text in zip(doing.told, (answer.first, answer.again), strict=True):
            if text:
                known.setdefault(doing.wish.step, text)
        if not group.waiting or answer.why:
            self._over(answer.number, now)

    def gone(self, node: str) -> None:
        """Its connection is gone: what it did is not known any more."""
        doing = self._round
        if doing is not None and node in doing.ids.values() and node not in doing.away:
            self._lost(node, "was lost")

    def look(self, now: float, connected: Collection[str]) -> None:
        """Who has had enough time is not waited for any longer."""
        doing = self._round
        if doing is not None and doing.away:
            doing.away.difference_update(connected)
            if not doing.away:
                self._go_on(now)
            elif now >= doing.until:
                self._lost(min(doing.away), "is not connected")
            return
        for number, group in list(doing.running.items()) if doing is not None else ():
            if now - group.since >= GROUP_S:
                late = ", ".join(sorted(group.waiting))
                group.why = group.why or f"{late} did not complete the step"
                self._over(number, now)

    def _refuse_all_but(self, wish: str) -> None:
        """The controller knows of one request at a time: others are forgotten there."""
        for other in [one for one in self._replies if one != wish]:
            self._replies.pop(other)(ReplayReply(refused="another step is being repeated"))

    # ── rounds ──

    def _over(self, number: int, now: float) -> None:
        doing = self._round
        assert doing is not None
        group = doing.running.pop(number)
        if group.why:
            doing.whys.append(f"{', '.join(group.nodes)}: {group.why}")
        doing.tried.setdefault(group.nodes, []).append(None if group.why else group.digests)
        if not doing.running:
            self._go_on(now)

    def _go_on(self, now: float) -> None:
        doing = self._round
        assert doing is not None
        step = doing.next()
        if not isinstance(step, TryGroups):
            self._end(doing, step)
            return
        for nodes in step.groups:
            number = next(self._numbers)
            group = doing.running[number] = _Group(nodes, now, set(nodes))
            self._send(doing.ids[nodes[0]], _message(doing, number, group, 0, None))

    def _end(self, doing: _Round, found: Located | None) -> None:
        if found is None:
            reply = self._compared(doing)
        else:
            verdict = "machine" if found.nodes and found.sure else ""
            reply = ReplayReply(
                verdict=verdict, summary=found.text, nodes=found.nodes, sure=found.sure
            )
        bad = found.nodes if found is not None and found.sure else ()
        self._tell(doing, {doing.ids[name]: reply.summary for name in bad}, reply)

    def _compared(self, doing: _Round) -> ReplayReply:
        if doing.whys:
            return ReplayReply(refused=f"it did not complete the step: {doing.whys[0]}")
        elsewhere, names = doing.elsewhere, ", ".join(doing.others)
        runs = [one for one in doing.tried[doing.members] if one is not None]
        there = doing.tried[elsewhere][-1] if elsewhere else None
        found = compared(doing.wish.step, runs, doing.told, there, names)
        return ReplayReply(
            verdict=str(found.verdict), summary=found.summary, differing=found.differing
        )

    def _lost(self, node: str, how: str) -> None:
        doing = self._round
        assert doing is not None
        why = f"{self._name(node)} {how} while step {doing.wish.step} was repeated"
        self._tell(doing, {}, ReplayReply(refused=why), missing=(node,))

    def _tell(
        self, doing: _Round, found: dict[str, str], reply: ReplayReply, missing: Group = ()
    ) -> None:
        self._round = None
        told = reply.summary or reply.refused
        attempt = doing.order.attempt
        self._put(NodesChecked(found=found, missing=missing, attempt=attempt, told=told))
        if (answer := self._replies.pop(doing.wish.id, None)) is not None:
            answer(reply)

    def _name(self, node: str) -> str:
        known = self._state.nodes.get(node)
        return known.name if known is not None else node


def _message(
    doing: _Round, number: int, group: _Group, rank: int, opened: GroupOpened | None
) -> RepeatStep:
    """`opened` is None for the first node, which says where it is. To the script it is the attempt
    after the last: what that one has saved may be restored."""
    begun, step = doing.begun, doing.wish.step
    start = Start(
        attempt=begun.attempt + 1,
        node_rank=rank,
        node_count=len(group.nodes),
        workers_per_node=begun.workers_per_node,
        store=opened.store if opened is not None else begun.store,
        redo_until=begun.redo_until,
        restarts=begun.restarts + 1,
        restore_below=min(step, doing.restore_below or step),
        bad_steps=doing.bad_steps,
        skips=begun.skips,
        committed=begun.committed or 1,
        version=begun.version,
    )
    return RepeatStep(number=number, step=step, start=start, opens=opened is None)


def _refusal(state: State, wish: StepsToRepeat, ids: Mapping[str, str]) -> str:
    """Why that cannot be."""
    if not state.instrumented:
        return "its script does not call holdfast.train.join(), so a step cannot be repeated"
    outlives = any(tier in state.tiers for tier in ("shared", "archive"))
    if not outlives or not any(step < wish.step for step in state.committed):
        return f"no checkpoint of a step before {wish.step} is in storage that all nodes can read"
    if missing := [name for name in wish.others if name not in ids]:
        return f"it has no node {missing[0]}"
    if len(wish.others) > state.size:
        return f"{len(wish.others)} nodes cannot take the place of {state.size}"
    if wish.isolate and state.size % wish.unit:
        return f"its {state.size} nodes are not whole replicas of {wish.unit} nodes each"
    return "" if state.repeating is None else "another step is being repeated"

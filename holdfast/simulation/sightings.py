"""Whether what makes an attempt slow, or wrong, is seen in time.

Bounds are those of a controller that is awake and hears the members; time in which it does not, or
in which a message may be late because of another fault, counts for nobody. Only what can be known
is asked for: a delay has to be longer than the round trips by which clocks are compared, and most
ranks have to be sound, for there is no other measure of what is slow.
"""

import math
from typing import NamedTuple, Protocol

from holdfast.controller import State
from holdfast.controller.phases import TRAINING, Phase
from holdfast.detection.corruption import PATIENCE_S
from holdfast.detection.straggler import seen_within_s
from holdfast.shell.straggler_sampling import ANSWERS_S, EVERY_S, FIRST_S
from holdfast.simulation.control import Control
from holdfast.simulation.environment import Environment
from holdfast.simulation.ground_truth import GroundTruth
from holdfast.simulation.referees import Referees
from holdfast.simulation.runs import Group, NodeAgent, NodeWorkers
from holdfast.simulation.slowness import A_STEP, Slow
from holdfast.simulation.wires import MAX_DELAY_S

MARGIN_S = 5.0
ASKED = 2  # times, before what is slow now is all that is judged, and once more
ROUND_TRIPS = 16.0  # mean delays: a comparison of clocks is hardly ever wrong by more
LEAST_TIMES = 1.15  # as slow as others: below that it may be none
PORT_S = 300.0  # in which it is asked whether a slow port makes anybody late


class Surroundings(Protocol):
    """Where all that happens."""

    @property
    def control(self) -> Control | None:
        """The controller that agents find, if there is one."""

    def disturbed_until(self, group: Group) -> float:
        """Until when something was wrong with whoever is in it, or with its way to us."""


class DueSighting(NamedTuple):
    """One thing that is to be: of an attempt, by whom it is slowed."""

    attempt: int
    what: str
    by: frozenset[Slow]


class Sightings:
    """What of all that has been seen, and is to be."""

    def __init__(
        self, env: Environment, place: Surroundings, referees: Referees, truth: GroundTruth
    ) -> None:
        self._env, self._place, self._referees, self._truth = env, place, referees, truth
        self._watched: set[DueSighting] = set()

    def changed(self, group: Group) -> None:
        """Its pace is another one, or its ranks know that they differ."""
        slow, differs = bool(self._slow(group)), self._differs(group)
        control = self._place.control
        if control is not None and (slow or differs or control.state.stragglers):
            control.look_in(0.0)
        if slow and self._can_be_seen(group):
            self._watch(group, "slow", self._slow_within_s(group))
        if differs:
            self._watch(group, "differs", self._differ_within_s)

    def slows(self, state: State) -> bool:
        """Whether it is worth asking when workers enter their collectives."""
        if state.limits.stragglers == "off" or state.phase is not Phase.RUNNING:
            return False
        known = {one.rank for one in state.stragglers}
        mine = (group for group in self._truth.training() if group.attempt == state.attempt)
        return any(self._shows(group, known) for group in mine)

    def _shows(self, group: Group, known: set[int]) -> bool:
        drags = any(self._drags(run.host) for run in group.runs.values())
        slow = self._slow(group)
        return drags or (known != slow and (not slow or self._can_be_seen(group)))

    def _drags(self, host: NodeAgent) -> bool:
        """Of a port that is slow for hours: lately, for it stays as it is."""
        port = self._env.ports.get(host.node)
        return host.drags > 1 and (port is None or self._env.now - port.since < PORT_S)

    # ── what can be known, and when ──

    def _slow(self, group: Group) -> set[int]:
        return {rank for run in group.runs.values() for rank in _slow_ranks(run)}

    def _can_be_seen(self, group: Group) -> bool:
        hosts = [run.host for run in group.runs.values()]
        times = [host.slow.times for host in hosts if host.slow is not None]
        hard, slow = self._env.hardship, self._slow(group)
        delay_s = (max(times, default=1.0) - 1) * hard.step_s / A_STEP
        doubt_s = min(ROUND_TRIPS * hard.delay_s, 2 * MAX_DELAY_S)
        few = 2 * len(slow) <= group.world_size and group.world_size > 1
        enough = self._judged_s(group) < math.inf
        alone = len(times) == 1 and all(host.drags == 1 for host in hosts)
        wanted = hard.limits.stragglers != "off" and min(times, default=1.0) >= LEAST_TIMES
        return wanted and few and enough and alone and delay_s > doubt_s

    def _judged_s(self, group: Group) -> float:
        assert group.tempo is not None
        step_s = group.tempo.slowest_s  # one that is not over is not told
        return seen_within_s(group.world_size, step_s / A_STEP, step_s)

    def _slow_within_s(self, group: Group) -> float:
        """Until seconds in which nobody was slow yet are not judged any more, at most."""
        asked_s = FIRST_S + ASKED * (EVERY_S + ANSWERS_S)
        return self._judged_s(group) + asked_s + self._referees.named_within_s + MARGIN_S

    @property
    def _differ_within_s(self) -> float:
        return PATIENCE_S + self._referees.named_within_s + MARGIN_S

    def _differs(self, group: Group) -> bool:
        flip = self._truth.flips.of(group.attempt)
        return flip is not None and self._truth.step(group) >= flip.known

    # ── whether that was so ──

    def _watch(self, group: Group, what: str, within_s: float) -> None:
        thing = DueSighting(
            group.attempt, what, _slowed_by(group) if what == "slow" else frozenset()
        )
        if thing not in self._watched:
            self._watched.add(thing)
            wait_s = within_s + 0.5
            self._env.after(wait_s, self._require, group, thing, within_s, self._env.now)

    def _require(self, group: Group, thing: DueSighting, within_s: float, since: float) -> None:
        self._watched.discard(thing)
        if group not in self._truth.training() or self._referees.over:
            return
        what = thing.what
        if what == "slow" and thing.by != _slowed_by(group):
            return  # that is over; what is slow now is another thing, with a time of its own
        there = self._differs(group) if what == "differs" else self._can_be_seen(group)
        if not there:
            return
        if not self._is_seen(group, what):
            told = f"that attempt {group.attempt} {what}"
            self._referees.unseen(told, self._could_be_seen_s(group, since), within_s)
        self._watched.add(thing)
        self._env.after(within_s / 4, self._require, group, thing, within_s, since)

    def _is_seen(self, group: Group, what: str) -> bool:
        control = self._place.control
        if control is None or what == "differs":
            return False  # it would have been stopped
        return bool(self._slow(group) & {one.rank for one in control.state.stragglers})

    def _could_be_seen_s(self, group: Group, since: float) -> float:
        control = self._place.control
        if control is None or control.state.attempt != group.attempt or not control.reach:
            return 0.0
        phases = TRAINING if self._differs(group) else (Phase.RUNNING,)
        if control.state.phase not in phases or control.state.standstill:
            return 0.0
        begun = group.first_at if group.first_at is not None else self._env.now
        stood = group.stall.until  # who stands enters no collectives
        last = max(since, control.awake_since, begun, stood, self._place.disturbed_until(group))
        return max(0.0, self._env.now - last)


def _slowed_by(group: Group) -> frozenset[Slow]:
    found = (run.host.slow for run in group.runs.values())
    return frozenset(slow for slow in found if slow is not None)


def _slow_ranks(run: NodeWorkers) -> list[int]:
    slow = run.host.slow
    if slow is None or slow.profiled:
        return []
    return [rank for place, rank in enumerate(run.ranks) if slow.takes(place)]

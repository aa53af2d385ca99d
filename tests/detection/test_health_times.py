"""How soon after its beginning each condition of a node is told, at worst, with looks on the dot.

The table in docs/concepts/diagnosis.md says the same of each rule.
"""

import math
import re
from pathlib import Path

import pytest

from holdfast.agent.cloud_notices.provider import LOOK_S
from holdfast.agent.health.folders import Folder
from holdfast.agent.health.gpus import Gpus
from holdfast.agent.health.network import Interfaces, RdmaPorts
from holdfast.agent.health.ports import TakenPorts
from holdfast.agent.health.pressure import HostPressure
from holdfast.agent.health.processes import ClockSteps, JobProcesses
from holdfast.agent.health.watch import TICK_S
from holdfast.detection.health import HISTORY_MAX, RULES, Conditions, How, Reading
from holdfast.events import Severity

PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "diagnosis.md"
AIM_S = 10
PHASES = 16  # of a condition that begins between two looks
FEW_S = 600.0
LOOKS_BEFORE = 120
PACES: dict[str, float] = {
    "gpu": Gpus.every_s,
    "memory": HostPressure.every_s,
    "cpu": HostPressure.every_s,
    "disk": Folder.every_s,
    "mount": Folder.every_s,
    "share": Folder.every_s,
    "folder": Folder.every_s,
    "clock": ClockSteps.every_s,
    "ports": TakenPorts.every_s,
    "process": JobProcesses.every_s,
    "zombies": JobProcesses.every_s,
    "link": Interfaces.every_s,
    "rdma": RdmaPorts.every_s,
    "cloud": LOOK_S,
}
SHARES = ("cpu-stolen", "cpu-throttled")  # of the time since the look before
WAITS = ("process-stuck",)  # since the first look that saw it
HELD = [kind for kind, rule in RULES.items() if rule.for_s and rule.how is How.HOLDS]
STALLED = (Gpus.stalled.kind, Folder(Path("/")).stalled.kind)  # since it was asked, each tick


def every_s(kind: str) -> float:
    return PACES[kind.partition("-")[0]]


def value(kind: str, at: float, first: float) -> float:
    """Of what has begun at 0 and is just enough, at a look; `first` was the first one since."""
    rule, pace = RULES[kind], every_s(kind)
    if kind in (*WAITS, *STALLED):
        return max(0.0, at - first)
    if at <= 0:
        return rule.limit * 2 if rule.how is How.FILLS else rule.limit - 1
    if kind in SHARES:
        return rule.limit * min(1.0, at / pace)
    if rule.how is How.FILLS:
        return rule.limit * 2 - at * 2
    return rule.limit if rule.how is not How.RISES else 2 * rule.limit - 1


def told_after_s(kind: str, phase: float) -> float:
    """The first look after its beginning is so late."""
    conditions, pace = Conditions("n"), every_s(kind)
    times = [phase - n * pace for n in range(LOOKS_BEFORE, 0, -1)]
    after = phase
    while after < FEW_S:
        times.append(after)
        after += TICK_S if kind in STALLED else pace
    for at in times:
        readings = [Reading(kind, value(kind, at, phase), "d")]
        for change in conditions.hear(readings, 1000.0 + at):
            assert at > 0 and change.severity is not Severity.OK
            return at
    return math.inf


def bound_s(kind: str) -> int:
    pace = every_s(kind)
    phases = (pace * n / PHASES for n in range(1, PHASES + 1))
    return math.ceil(max(told_after_s(kind, phase) for phase in phases) - 1e-9)


def on_page() -> dict[str, tuple[str, str]]:
    """What the page says of each: how often it is looked at, and within what it is told."""
    found = {}
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and re.fullmatch(r"\d+ s", cells[1]):
            for kind in re.findall(r"`([a-z-]+)`", cells[0]):
                assert kind not in found
                found[kind] = cells[1], cells[3]
    return found


@pytest.mark.parametrize("kind", RULES)
def test_the_page_says_within_which_time_each_condition_is_told(kind: str) -> None:
    looks, within = on_page()[kind]
    assert (looks, within.strip("*")) == (f"{every_s(kind):g} s", f"{bound_s(kind)} s")
    assert within.startswith("**") == (bound_s(kind) > AIM_S), "what misses the aim is said so"


def test_the_page_names_no_other_conditions() -> None:
    assert on_page().keys() == RULES.keys()


@pytest.mark.parametrize("kind", HELD)
def test_what_holds_for_one_look_less_is_not_told(kind: str) -> None:
    rule, pace = RULES[kind], every_s(kind)
    looks = math.ceil(rule.for_s / pace)  # after the first
    conditions, at = Conditions("n"), 0.0
    for _ in range(5):
        for n in range(looks + 1):
            assert conditions.hear([Reading(kind, rule.limit - (n == looks), "d")], at) == []
            at += pace


@pytest.mark.parametrize("kind", HELD)
def test_looks_that_are_a_little_early_or_late_tell_with_the_same_one(kind: str) -> None:
    early = RULES[kind].for_s / every_s(kind) % 1.0
    assert RULES[kind].for_s >= 60 or 0.1 <= early <= 0.9


def test_a_rule_keeps_the_looks_that_it_needs() -> None:
    for kind, rule in RULES.items():
        if rule.how in (How.FILLS, How.RISES) and rule.for_s <= FEW_S:
            assert rule.for_s / every_s(kind) <= HISTORY_MAX

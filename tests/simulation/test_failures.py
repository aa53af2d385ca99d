"""Faults are drawn at the rates and in the shares of their mix, and the same for the same seed."""

from collections import Counter
from itertools import islice, pairwise, takewhile
from typing import get_args

import pytest

from holdfast.goodput.formulas import DAY_S
from holdfast.simulation import scenario
from holdfast.simulation.failures import Fault, Scope, faults
from holdfast.simulation.plan import Plan, work_out
from holdfast.simulation.scenario import DATA


def plan(name: str, *settings: str) -> Plan:
    return work_out(*scenario.load(name, settings))


def drawn(world: Plan, seed: int = 1, days: float = 300) -> list[Fault]:
    return list(takewhile(lambda fault: fault.at < days * DAY_S, faults(world, seed)))


def test_rates_and_shares_are_those_of_the_mix() -> None:
    world = plan("llama3-16k")
    members = [fault for fault in drawn(world) if fault.scope is Scope.MEMBER]
    expected = 3.79 / 1000 * 2048 * 300
    assert len(members) == pytest.approx(expected, rel=0.05)
    counts = Counter(fault.name for fault in members)
    assert counts["faulty-gpu"] / len(members) == pytest.approx(148 / 419, abs=0.02)
    stays = [f.stays for f in members if f.name == "faulty-gpu"]
    assert sum(stays) / len(stays) == pytest.approx(0.7, abs=0.04)
    assert len({fault.where for fault in members}) > 1000


def test_faults_come_in_order_of_time_and_again_for_the_same_seed() -> None:
    world = plan("spot-256")
    first = list(islice(faults(world, 3), 500))
    assert all(a.at <= b.at for a, b in pairwise(first))
    assert first == list(islice(faults(world, 3), 500))
    assert first != list(islice(faults(world, 4), 500))


def test_members_meet_the_same_faults_whatever_else_is_changed() -> None:
    few, many = plan("llama3-16k", "spares=1"), plan("llama3-16k", "spares=30")
    members = [[f for f in drawn(p) if f.scope is Scope.MEMBER] for p in (few, many)]
    assert members[0] == members[1]


def test_storms_take_shares_between_their_bounds() -> None:
    storms = [f for f in drawn(plan("spot-256"), days=200) if f.scope is Scope.STORM]
    assert len(storms) == pytest.approx(200, rel=0.25)
    assert all(0.02 <= storm.share <= 0.20 for storm in storms)


def test_a_detection_time_that_is_set_holds_for_every_cause() -> None:
    found = drawn(plan("llama3-16k", "times.detection_s=2"))
    assert {f.detection_s for f in found if f.scope is Scope.MEMBER} == {2.0}


def test_every_shipped_mix_names_its_source_and_what_is_assumed() -> None:
    names = [file.name.removesuffix(".yaml") for file in (DATA / "mixes").iterdir()]
    assert {"byterobust", "llama3", "rsc1", "rsc2", "spot"} <= set(names)
    for name in names:
        _, mix = scenario.load("rsc1-8k", [f"failures.mix={name}"])
        assert len(mix.source) > 20
        assert len(mix.assumed) > 20


def test_delays_that_were_measured_are_drawn_for_what_shows_like_it() -> None:
    """By dice of their own: whoever compares them with others compares the same faults."""
    scene, mix = scenario.load("rsc1-8k", ["failures.mix=llama3-measured"])
    constant = {
        name: cause.model_copy(update={"detection_s": 1.0}) for name, cause in mix.causes.items()
    }
    fixed = drawn(work_out(scene, mix.model_copy(update={"causes": constant})), days=60)
    found = drawn(work_out(scene, mix), days=60)
    assert [one._replace(detection_s=0.0) for one in found] == [
        one._replace(detection_s=0.0) for one in fixed
    ]
    known = scenario.measured()
    for one in found:
        if one.scope is Scope.MEMBER:
            kind = mix.causes[one.name].measured_as or one.shows
            least_s = known.steps.get(kind, 0.0) * scene.step_s
            delays = known.seconds[kind]
            assert one.detection_s == least_s > delays[0] or one.detection_s in delays


def test_the_measured_mix_has_each_kind_that_was_measured_and_long_steps_are_waited_for() -> None:
    """A hang is known after five steps, corruption at the next comparison, whoever is slow after
    many: what takes 3 s of steps of 50 ms does not of steps of 10 s."""
    _, mix = scenario.load("llama3-16k", ["failures.mix=llama3-measured"])
    kinds = {name: cause.measured_as or cause.shows for name, cause in mix.causes.items()}
    assert set(kinds.values()) == set(scenario.measured().seconds)
    worst: dict[str, dict[float, float]] = {}
    for step_s in (0.05, 10.0):
        world = plan("llama3-16k", "failures.mix=llama3-measured", f"step_s={step_s}")
        for one in (fault for fault in drawn(world) if fault.scope is Scope.MEMBER):
            of_kind = worst.setdefault(kinds[one.name], {})
            of_kind[step_s] = max(of_kind.get(step_s, 0.0), one.detection_s)
    assert {kind for kind, by in worst.items() if by[10.0] > by[0.05]} == {
        "corruption",
        "network",
        "straggler",
    }
    assert worst["corruption"][10.0] == 100.0 and worst["corruption"][0.05] < 1.0
    assert worst["worker"][10.0] == worst["worker"][0.05] < 2.0


def test_all_that_a_fault_may_show_was_measured() -> None:
    fields = scenario.Cause.model_fields
    shows = {*get_args(fields["shows"].annotation), *get_args(fields["measured_as"].annotation)}
    known = scenario.measured()
    assert set(known.seconds) == shows - {""} and known.steps.keys() <= known.seconds.keys()
    assert all([*delays] == sorted(delays) for delays in known.seconds.values())

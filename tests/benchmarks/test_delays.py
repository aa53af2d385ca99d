"""The delays that the simulator draws are those that the documentation says were measured."""

import json

import delays
from holdfast.simulation.scenario import DATA

CAMPAIGN = json.loads(delays.MEASURED.read_text())


def test_shipped_delays_are_those_of_the_measurements() -> None:
    """Else: .venv/bin/python benchmarks/delays.py > holdfast/simulation/data/detection.yaml"""
    assert (DATA / "detection.yaml").read_text() == delays.written()


def test_it_is_the_newest_campaign() -> None:
    folder = delays.MEASURED.parent
    assert max(folder.glob("faults-*.json")).name == delays.MEASURED.name


def test_each_fault_counts_once_the_worst_as_it_was_and_the_others_with_medians() -> None:
    kind = {"detected": 5, "median_s": [3.0, 8.0], "worst_s": 13.0}
    assert delays.spread(kind, {"seed 0": 3, "seed 1": 2}) == [13.0, 8.0, 8.0, 3.0, 3.0]
    unseen = {"detected": 4, "median_s": [3.0, 8.0], "worst_s": 13.0}
    assert delays.spread(unseen, {"seed 0": 3, "seed 1": 2}) == [13.0, 8.0, 8.0, 3.0]


def test_every_kind_that_was_injected_counts_or_is_left_out() -> None:
    found, faults = delays.delays(), CAMPAIGN["faults"]
    listed = [kind for kinds in delays.KINDS.values() for kind in kinds]
    assert {*listed, *delays.LEFT_OUT} <= faults.keys()
    seen = sum(one["detected"] for kind, one in faults.items() if kind not in delays.LEFT_OUT)
    twice = sum(faults[kind]["detected"] for kind in delays.ENDS)
    assert sum(map(len, found.values())) == seen + twice


def test_no_delay_is_longer_than_the_worst_nor_is_the_worst_left_out() -> None:
    found = delays.delays()
    for shows, kinds in delays.KINDS.items():
        assert max(found[shows]) == max(CAMPAIGN["faults"][kind]["worst_s"] for kind in kinds)

"""The delays that the simulator draws are those that the documentation says were measured."""

import delays
from holdfast.simulation.scenario import DATA


def test_shipped_delays_are_those_of_the_measurements() -> None:
    """Else: .venv/bin/python benchmarks/delays.py > holdfast/simulation/data/detection.yaml"""
    assert (DATA / "detection.yaml").read_text() == delays.written()


def test_each_row_counts_as_often_as_it_was_measured() -> None:
    text = "| sleep | 7 | 3 s | 11 s | `hang` | – |\n| memory leak to the limit | 5 | 11 s | 14 s |"
    assert [*delays.table(text)] == [
        ("sleep", 7, 3.0, 11.0),
        ("memory leak to the limit", 5, 11.0, 14.0),
    ]
    hangs = delays.delays()["hang"]
    assert hangs.count(11.0) == 2, "sleep and the GIL, at worst"
    assert len(hangs) == 8 * 7 + len(delays.AGAIN["hang"])

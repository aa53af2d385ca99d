"""Replicas and whole jobs meet the same faults, and each pays what it should."""

from pathlib import Path

import pytest

import ladder
import modes
from holdfast.simulation.sweep import plan_of, question

NO_SPARES = (*modes.TIMES["measured"], "spares=0")


def test_without_spares_replicas_go_on_while_a_whole_job_waits_for_a_node() -> None:
    whole = modes.lived("whole job", 512, 10.0, 0, NO_SPARES)
    kept = modes.lived("replicas, kept", 512, 10.0, 0, NO_SPARES)
    assert whole.incidents > 5
    assert kept.buckets.get("schedule", 0.0) < whole.buckets["schedule"] / 2
    assert kept.ettr > whole.ettr
    assert 0 < kept.buckets["degraded"] < kept.buckets["productive"]


def test_a_row_has_what_is_printed() -> None:
    found = modes.row([modes.lived("replicas, warm", 64, 1.0, 0)])
    assert found["n"] == 1 and found["gave_up"] == 0
    assert 0 < float(found["worst_percent"] or 0) <= float(found["ettr_percent"] or 0) < 100


def test_the_phases_of_what_was_measured_add_up_to_it() -> None:
    plan = plan_of(question(ladder.SCENARIO, modes.TIMES["measured"]))
    times, memory = plan.scenario.times, plan.scenario.checkpoint
    others_s = plan.rendezvous_s + memory.restore_s
    worker_s = times.teardown_s + times.start_s + others_s + times.first_step_s
    assert round(others_s, 2) == 0.15
    assert round(worker_s, 2) == 0.35
    assert round(worker_s - memory.restore_s + memory.restore_peer_s, 2) == 1.05


def test_the_plot_has_a_line_for_each_mode_and_says_that_it_is_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(modes, "DRAWN_SPARES", (0, 1))
    modes._draw(tmp_path, 32, 1.0, 1)
    drawn = (tmp_path / "modes-32.svg").read_text()
    assert all(f"<!-- {mode} -->" in drawn for mode in modes.MODES) and "(model result)" in drawn

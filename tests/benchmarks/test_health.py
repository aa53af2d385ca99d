"""The benchmark of what health costs counts real workers, and leaves none."""

import argparse
import os

import pytest

import health
from holdfast.agent.idleness import SAMPLE_S, counts_of


def test_workers_without_steps_are_counted_with_their_threads_and_children() -> None:
    with health._worker(3, 2) as pid:
        assert len(os.listdir(f"/proc/{pid}/task")) == 3
        counts = counts_of(pid, threads=True)
        assert len(counts.pids) == 3
    assert not counts_of(pid).pids


def test_what_each_thread_does_costs_more_than_what_a_worker_does() -> None:
    options = argparse.Namespace(workers=1, threads=30, children=0, looks=20)
    acts, idle = health._without_steps(options).values()
    assert acts["look_us"] == pytest.approx(float(acts["core_share"] or 0) * SAMPLE_S * 1e6)
    assert float(idle["look_us"] or 0) > float(acts["look_us"] or 0) > 0

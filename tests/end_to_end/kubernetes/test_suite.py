"""The suite for real clusters works: it is run against the cluster of the unit tests, which serves
the paths, the rights and the file modes that a real one does."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.drivers.kubernetes.cluster.fake import in_thread
from tests.end_to_end.kubernetes import test_jobs as suite
from tests.end_to_end.kubernetes.cluster import KUBECONFIG, OVERLAY, RealCluster, until
from tests.end_to_end.kubernetes.test_preemption import Slots
from tests.end_to_end.kubernetes.test_preemption import (
    test_a_replacement_preempts_work_of_a_lower_priority as preemption,
)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]
more = pytest.mark.skipif("HOLDFAST_TEST_MORE" not in os.environ, reason="HOLDFAST_TEST_MORE=1")
STORIES = (
    suite.test_a_job_trains_to_its_end,
    suite.test_a_killed_worker_is_restarted_in_place,
    suite.test_a_deleted_pod_is_replaced_by_the_spare,
    suite.test_a_killed_controller_disturbs_nobody_and_the_next_goes_on,
    suite.test_a_drained_machine_is_left,
    suite.test_a_stopped_job_leaves_nothing_running,
)


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RealCluster]:
    """A namespace of a cluster in this process, with what a person gives: one kubeconfig."""
    with in_thread(machines=4, engines=("jobset",)) as it:
        config = tmp_path / "kubeconfig"
        config.write_text(it.do(lambda it: it.kubeconfig()).read_text())
        monkeypatch.setenv(KUBECONFIG, str(config))
        monkeypatch.setenv("KUBECONFIG", "")
        monkeypatch.delenv(OVERLAY, raising=False)
        made = RealCluster("holdfast-e2e-suite")
        made.make()
        yield made


def test_it_has_a_namespace_of_its_own_and_takes_it_away(stand_in: RealCluster) -> None:
    assert stand_in.serves("jobset") and not stand_in.serves("volcano")
    assert len(stand_in.machines()) == 4
    assert stand_in.told("list") == []
    stand_in.remove()
    until(lambda: "does not exist" in stand_in.holdfast("doctor", check=False).stdout,
          "the namespace to go", 20.0)  # fmt: skip


@more
@pytest.mark.parametrize("engine", ["pods", "jobset"])
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_its_stories_can_be_told(
    stand_in: RealCluster, story: object, engine: str, tmp_path: Path
) -> None:
    assert callable(story)
    note: dict[str, float] = {}
    story(stand_in, engine, tmp_path, note)
    print(engine, note, file=sys.stderr)


@more
def test_its_story_of_preemption_can_be_told(stand_in: RealCluster, tmp_path: Path) -> None:
    slots = Slots(stand_in)
    slots.make()
    preemption(stand_in, slots, tmp_path, {})
    slots.remove()

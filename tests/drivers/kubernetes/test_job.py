"""An Indexed Job gives a job its pods and never decides in Holdfast's place."""

import os
import subprocess
from typing import Any

import pytest

from holdfast.drivers.kubernetes.manifests.engines import job
from holdfast.drivers.kubernetes.manifests.indexed import NO_BUDGET
from holdfast.drivers.kubernetes.manifests.request import Body
from holdfast.spec.cluster import Mode
from tests.drivers.kubernetes.asking import asked
from tests.drivers.kubernetes.schemas import problems


def jobs(mode: Mode = "managed", **keys: Any) -> list[Body]:
    """The Jobs of such a job, each accepted strictly."""
    found = [body for body in job.bodies(asked("job", mode, **keys)) if body["kind"] == "Job"]
    assert not [problem for body in found for problem in problems(body)]
    return found


def spec(mode: Mode = "managed", **keys: Any) -> Body:
    """The spec of the only one."""
    [found] = jobs(mode, **keys)
    return dict(found["spec"])


def command(mode: Mode = "plain", **keys: Any) -> list[str]:
    """What its pods run."""
    return list(spec(mode, **keys)["template"]["spec"]["containers"][0]["command"])


SPARES: dict[str, Any] = {"nodes": {"count": 8, "spares": 2}}


def test_nodes_and_spares_are_pods_of_one_job() -> None:
    found = spec(**SPARES)
    assert (found["completionMode"], found["completions"], found["parallelism"]) == (
        "Indexed",
        10,
        10,
    )


def test_the_job_has_no_failure_budget_and_replaces_pods_of_dead_machines() -> None:
    found = spec(**SPARES)
    assert found["backoffLimit"] == NO_BUDGET == 2147483647
    assert found["podReplacementPolicy"] == "TerminatingOrFailed"
    assert "podFailurePolicy" not in found  # it would force the replacement policy Failed
    assert found["template"]["spec"]["restartPolicy"] == "Never"


def test_it_is_complete_when_as_many_have_ended_as_train() -> None:
    assert spec(**SPARES)["successPolicy"] == {"rules": [{"succeededCount": 8}]}
    assert spec(nodes=8)["successPolicy"] == {"rules": [{"succeededCount": 8}]}
    assert "successPolicy" not in spec(nodes=1)


def test_a_job_that_may_shrink_is_complete_with_as_few_as_it_may_shrink_to() -> None:
    found = spec(nodes=8, elasticity={"min_nodes": 5})
    assert found["successPolicy"] == {"rules": [{"succeededCount": 5}]}


def test_spares_with_a_priority_of_their_own_are_a_job_of_their_own() -> None:
    own = {"priority_class": "train", "spare_priority_class": "spare"}
    nodes, spares = jobs(**SPARES, scheduling=own)
    assert (nodes["metadata"]["name"], nodes["spec"]["completions"]) == ("run", 8)
    assert (spares["metadata"]["name"], spares["spec"]["completions"]) == ("run-spare", 2)
    priority = [j["spec"]["template"]["spec"]["priorityClassName"] for j in (nodes, spares)]
    assert priority == ["train", "spare"]


def test_jobs_apart_are_complete_with_the_pods_that_surely_run() -> None:
    """Two of eight may have been replaced by the spares and still wait for a machine."""
    own = {"spare_priority_class": "spare"}
    nodes, spares = jobs(**SPARES, scheduling=own)
    assert nodes["spec"]["successPolicy"] == {"rules": [{"succeededCount": 6}]}
    assert spares["spec"]["successPolicy"] == {"rules": [{"succeededCount": 1}]}


def test_time_limit_time_to_live_and_suspension_are_the_jobs() -> None:
    found = spec(lifetime={"time_limit_s": 60, "keep_s": 5, "suspend": True})
    assert found["activeDeadlineSeconds"] == 60
    assert found["ttlSecondsAfterFinished"] == 5
    assert found["suspend"] is True
    assert not {"activeDeadlineSeconds", "ttlSecondsAfterFinished", "suspend"} & spec().keys()


def test_plain_processes_meet_at_the_first_pod() -> None:
    found = spec("plain", nodes=2)
    assert "--rdzv-endpoint=run-0.run:29400" in command(nodes=2)
    assert found["template"]["spec"]["subdomain"] == "run"


def test_plain_crashes_are_repaired_in_place_and_lost_pods_are_replaced_each_on_its_own() -> None:
    found = spec("plain", nodes=4, recovery={"max_restarts": 20})
    assert "--max-restarts=20" in command(nodes=4, recovery={"max_restarts": 20})
    assert (found["backoffLimitPerIndex"], found["maxFailedIndexes"]) == (6, 0)


@pytest.mark.parametrize(("keys", "often"), [({}, 2), ({"command": ["prog"]}, 2)])
def test_plain_pods_are_replaced_no_more_often_than_restarts_are_allowed(
    keys: dict[str, Any], often: int
) -> None:
    found = spec("plain", recovery={"max_restarts": 2}, **keys)
    assert found["backoffLimitPerIndex"] == often


def test_a_plain_command_has_only_the_job_to_restart_it() -> None:
    found = spec("plain", recovery={"max_restarts": 20}, command=["prog"], args=["-x"])
    assert found["backoffLimitPerIndex"] == 20
    assert command(command=["prog"], args=["-x"]) == ["prog", "-x"]


def test_a_sweep_is_a_job_of_independent_trials() -> None:
    trials = {"trials": 10, "parallel": 3, "retries": 1, "max_failed": 4}
    found = spec("plain", sweep=trials)
    assert (found["completions"], found["parallelism"]) == (10, 3)
    assert (found["backoffLimitPerIndex"], found["maxFailedIndexes"]) == (1, 4)
    assert command(sweep=trials) == ["python", "train.py"]


def test_each_trial_finds_its_options_by_its_number() -> None:
    over = {"lr": ["0.1", "it's"], "width": ["8"]}
    line = command(sweep={"over": over}, command=["printf", r"%s\n"], args=["-x"])
    for number, lr in enumerate(over["lr"]):
        ran = subprocess.run(
            line, env={**os.environ, "JOB_COMPLETION_INDEX": str(number)}, capture_output=True
        )
        assert ran.stdout.decode().splitlines() == ["-x", "--lr", lr, "--width", "8"]


def test_values_of_trials_are_neither_kubernetes_nor_the_shells_to_expand() -> None:
    values = ["$(HOME)", "a$$b", "$(touch y)\nz; `w`"]
    line = command(sweep={"over": {"x": values}}, command=["printf", r"%s\0"])
    assert not [word for word in line if "$(" in word.replace("$$", "")]
    line = [word.replace("$$", "$") for word in line]  # as a kubelet does
    for number, x in enumerate(values):
        env = {**os.environ, "JOB_COMPLETION_INDEX": str(number)}
        ran = subprocess.run(line, env=env, capture_output=True)
        assert ran.stdout.decode().split("\0") == ["--x", x, ""]


def test_a_trial_with_several_workers_is_a_torchrun_of_its_own() -> None:
    found = command(sweep={"trials": 3}, workers_per_node=2)
    assert found == ["torchrun", "--standalone", "--nproc-per-node=2", "train.py"]
    assert "maxFailedIndexes" not in spec("plain", sweep={"trials": 3})


def test_a_large_job_is_as_small_as_a_small_one() -> None:
    small, large = spec(nodes=2), spec(nodes={"count": 512, "spares": 8})
    assert small["template"] == large["template"]
    assert (large["completions"], large["parallelism"]) == (520, 520)

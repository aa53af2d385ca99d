"""A CronJob starts the job at its times, and its rule for overlaps sees the whole of it."""

from typing import Any

from holdfast.drivers.kubernetes.manifests.engines import cronjob
from holdfast.drivers.kubernetes.manifests.names import ROLE
from holdfast.drivers.kubernetes.manifests.request import Body
from holdfast.spec.cluster import Mode
from tests.drivers.kubernetes.asking import asked
from tests.drivers.kubernetes.schemas import problems

NIGHTLY = {"cron": "0 3 * * *"}


def spec(mode: Mode = "managed", schedule: dict[str, Any] = NIGHTLY, **keys: Any) -> Body:
    """The spec of the CronJob of such a job, which is accepted strictly."""
    [found] = cronjob.bodies(asked("cronjob", mode, schedule=schedule, **keys))
    assert problems(found) == []
    return dict(found["spec"])


def child(mode: Mode = "managed", **keys: Any) -> Body:
    """The spec of the Job that it makes."""
    return dict(spec(mode, **keys)["jobTemplate"]["spec"])


def container(found: Body) -> Body:
    """The only container of a Job."""
    [only] = found["template"]["spec"]["containers"]
    return dict(only)


def test_times_are_those_of_the_schedule() -> None:
    said = {
        "cron": "@daily",
        "time_zone": "Europe/Oslo",
        "overlap": "Replace",
        "late_s": 60,
        "keep_succeeded": 1,
        "keep_failed": 2,
    }
    found = spec(schedule=said, lifetime={"suspend": True})
    assert (found["schedule"], found["timeZone"]) == ("@daily", "Europe/Oslo")
    assert (found["concurrencyPolicy"], found["startingDeadlineSeconds"]) == ("Replace", 60)
    assert (found["successfulJobsHistoryLimit"], found["failedJobsHistoryLimit"]) == (1, 2)
    assert found["suspend"] is True


def test_a_start_that_is_late_is_left_out_even_if_nothing_is_said() -> None:
    assert spec()["startingDeadlineSeconds"] == 3600
    assert not {"timeZone", "suspend"} & spec().keys()


def test_a_managed_one_submits_the_job_and_stays_until_it_has_ended() -> None:
    found = child(nodes={"count": 8, "spares": 2}, resources={"gpus": 8})
    assert container(found)["command"] == [
        "holdfast", "submit", "/etc/holdfast/job/job.yaml",
        "--on", "kubernetes", "--engine", "pods", "--wait",
    ]  # fmt: skip
    assert "parallelism" not in found
    assert "nvidia.com/gpu" not in str(found)


def test_the_submitter_acts_in_its_own_name_and_is_no_node() -> None:
    template = child()["template"]
    assert template["spec"]["serviceAccountName"] == "run-submit"
    assert template["spec"]["automountServiceAccountToken"] is True
    assert template["metadata"]["labels"][ROLE] == "submit"


def test_the_submitter_knows_where_the_code_lies_that_was_shipped_with_the_schedule() -> None:
    assert "env" not in container(child())
    [variable] = container(child(code="."))["env"]
    assert variable["name"] == "HOLDFAST_CODE"
    assert variable["value"].startswith("run-code-")


def test_a_failed_submission_is_not_submitted_again() -> None:
    found = child(lifetime={"keep_s": 9})
    assert (found["backoffLimit"], found["ttlSecondsAfterFinished"]) == (0, 9)
    assert found["template"]["spec"]["restartPolicy"] == "Never"


def test_a_plain_one_makes_the_training_itself() -> None:
    found = child("plain", nodes=2, lifetime={"time_limit_s": 60, "suspend": True})
    assert (found["completions"], found["completionMode"]) == (2, "Indexed")
    assert found["activeDeadlineSeconds"] == 60
    assert "suspend" not in found  # the CronJob is, its children are not


def test_pods_of_a_plain_one_meet_at_the_first_pod_of_their_own_night() -> None:
    found = container(child("plain", nodes=2))
    assert "--rdzv-endpoint=$(JOB_NAME)-0.run:29400" in found["command"]
    [variable] = found["env"]
    assert variable["name"] == "JOB_NAME"
    path = variable["valueFrom"]["fieldRef"]["fieldPath"]
    assert path == "metadata.labels['batch.kubernetes.io/job-name']"


def test_a_plain_sweep_can_be_scheduled() -> None:
    assert child("plain", sweep={"trials": 5})["completions"] == 5


def test_children_of_a_plain_one_wait_in_the_queue() -> None:
    scheduling = {"kueue": {"queue": "q", "topology": "rack"}}
    template = spec("plain", scheduling=scheduling)["jobTemplate"]
    assert template["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "q"
    assert template["spec"]["suspend"] is True
    found = spec("managed", scheduling=scheduling)
    assert "kueue" not in str(found)  # the job that is submitted waits, not its submitter

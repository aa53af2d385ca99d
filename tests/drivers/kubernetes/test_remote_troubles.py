"""What keeps pods from running is told as one error for each cause, with counts and a remedy."""

import time
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from holdfast.drivers.kubernetes.pods import Pod, PodSpec
from holdfast.drivers.kubernetes.record import Recorded
from holdfast.drivers.kubernetes.remote import Look, incomplete, stale, status
from holdfast.drivers.kubernetes.remote_troubles import ClaimObject, EventObject, Evidence, troubles
from holdfast.drivers.kubernetes.submit_refusals import About
from holdfast.errors import Error
from holdfast.spec.load import as_given
from holdfast.status import Goodput, JobStatus
from tests.drivers.kubernetes.asking import job

ABOUT = About("job run", "v1", "team", " -n team")


def pod(name: str, role: str = "node", **said: Any) -> Pod:
    """A pod in this state."""
    meta = {"name": name, "uid": f"u-{name}", "labels": {"holdfast.dev/role": role}}
    return msgspec.convert({"metadata": meta, "status": said}, Pod)


def waits(name: str, reason: str, message: str = "", role: str = "node") -> Pod:
    """A pod whose container waits."""
    state = {"waiting": {"reason": reason, "message": message}}
    scheduled = [{"type": "PodScheduled", "status": "True"}]
    containers = [{"name": "main", "state": state}]
    return pod(name, role, conditions=scheduled, containerStatuses=containers)


def unplaced(name: str, message: str, reason: str = "Unschedulable") -> Pod:
    """A pod without a machine."""
    said = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    return pod(name, conditions=[said])


def runs(name: str, role: str = "node") -> Pod:
    """A pod that runs."""
    return pod(name, role, containerStatuses=[{"name": "main", "state": {"running": {}}}])


def look(*pods: Pod, waiting_for: str | None = None, **keys: Any) -> Look:
    """A job of three nodes with these pods; with a record if it says what it waits for."""
    record = None
    if waiting_for is not None:
        nothing = Goodput(job="run", wall_s=0, ettr=0, ettr_1h=0, buckets={}, observed=False)
        record = Recorded(a_status(waiting_for), incidents=(), goodput=nothing)
    data = {"job.yaml": as_given(job(nodes=3, **keys))}
    file = {"metadata": {"name": "run-job"}, "data": data}
    return Look("run", file, time.time(), record, pods, kept=True, at=time.time())


def published(
    age_s: float, *pods: Pod, lacks: str | None = None, outcome: str | None = None
) -> Look:
    """A job whose record was written so long ago."""
    seen = look(*pods, waiting_for="")
    assert seen.record is not None
    told = msgspec.structs.replace(seen.record.status, outcome=outcome)
    record = msgspec.structs.replace(seen.record, status=told, at=seen.at - age_s, incomplete=lacks)
    return replace(seen, record=record)


def test_a_record_that_nobody_keeps_up_says_how_old_it_is() -> None:
    error = stale(published(312.0, runs("run-0")), ABOUT)
    assert error is not None and error.slug == "record-stale"
    assert error.what.startswith("the record of job run was last published at 20")
    assert error.why.startswith("that was 312 s ago, and its controller, which publishes every few")
    assert "is starting" in error.why, "what became of the controller"
    assert error.help == "kubectl logs -n team deployment/run-controller"


def test_a_record_that_is_kept_up_or_final_or_without_a_time_is_not_stale() -> None:
    assert stale(published(12.0), ABOUT) is None
    assert stale(published(1e6, outcome="succeeded"), ABOUT) is None
    assert stale(look(waiting_for=""), ABOUT) is None, "one of a former version"
    assert stale(look(), ABOUT) is None


def test_a_record_of_which_a_part_is_missing_says_which() -> None:
    assert incomplete(published(1.0), ABOUT) is None
    error = incomplete(published(1.0, lacks="no shards"), ABOUT)
    assert error is not None
    assert (error.slug, error.why, error.status) == ("record-incomplete", "no shards", 3)


@pytest.mark.parametrize(
    ("reason", "said", "what"),
    [
        ("FailedMount", 'MountVolume.SetUp failed for volume "data" : mount failed: exit status 32',
         "mount a volume"),
        ("FailedCreatePodSandBox", "plugin type=\"aws-cni\": failed to assign an IP address",
         "get a network and a sandbox"),
    ],
)  # fmt: skip
def test_what_keeps_a_pod_from_starting_is_told_in_the_words_of_the_kubelet(
    reason: str, said: str, what: str
) -> None:
    who = {"kind": "Pod", "name": "run-0"}
    event = msgspec.convert(
        {"involvedObject": who, "reason": reason, "message": said, "type": "Warning"},
        EventObject,
    )
    placed = msgspec.convert({"nodeName": "m-0"}, PodSpec)
    creating = msgspec.structs.replace(waits("run-0", "ContainerCreating"), spec=placed)
    (error,) = troubles(look(creating, runs("run-1"), runs("run-2")), Evidence([event]), ABOUT)
    assert (error.slug, error.what) == (
        "pod-unstartable", f"1 of 3 nodes of run cannot {what}",
    )  # fmt: skip
    assert error.why == f"{reason}: {said}"
    up = look(runs("run-0"), runs("run-1"), runs("run-2"))
    assert troubles(up, Evidence([event]), ABOUT) == [], "old events outlive their cause"


def a_status(waiting_for: str) -> JobStatus:
    return JobStatus(
        job="run", phase="waiting", attempt=0, step=None, ettr=0.0, nodes=(), incidents_count=0,
        restarts_count=0, waiting_for=waiting_for, started_at=0.0, wall_s=1.0,
    )  # fmt: skip


def event(name: str, message: str, reason: str = "FailedCreate", kind: str = "Job") -> EventObject:
    return msgspec.convert(
        {
            "involvedObject": {"kind": kind, "name": name},
            "reason": reason,
            "message": message,
            "type": "Warning",
            "lastTimestamp": "2026-01-01T00:00:00Z",
        },
        EventObject,
    )


def told(seen: Look, found: Evidence = Evidence()) -> dict[str, Error]:  # noqa: B008
    """Errors by slug."""
    return {error.slug: error for error in troubles(seen, found, ABOUT)}


def test_a_job_that_runs_has_no_troubles() -> None:
    assert told(look(*map(runs, "abc"), runs("c", "controller"))) == {}


def test_an_image_that_cannot_be_pulled_is_told_once_with_its_count() -> None:
    why = 'Back-off pulling image "img:1"'
    pods = [waits("a", "ImagePullBackOff", why), waits("b", "ImagePullBackOff", why), runs("c")]
    [error] = told(look(*pods)).values()
    assert error.slug == "image-unavailable"
    assert error.what == "2 of 3 nodes of run cannot pull the image"
    assert why in error.why
    assert error.help.startswith("holdfast delete run --force --on kubernetes -n team")


def test_the_controllers_own_image_is_told_as_its_own() -> None:
    found = told(look(waits("x", "ErrImagePull", "no such tag", "controller")))
    assert found["image-unavailable"].what == "the controller of run cannot pull the image"


def test_a_controller_that_cannot_stand_by_is_no_trouble_while_the_other_runs() -> None:
    said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no"}
    others = [pod("y", "controller", conditions=[said])]
    assert "unschedulable" in told(look(*map(runs, "abc"), *others))
    assert told(look(*map(runs, "abc"), runs("x", "controller"), *others)) == {}


def test_what_machines_lack_is_told_with_how_many_nodes_are_short() -> None:
    said = "0/5 nodes are available: 2 Insufficient cpu, 3 Insufficient nvidia.com/gpu. preemption:"
    pods = [unplaced("a", said), unplaced("b", said), runs("c")]
    error = told(look(*pods))["unschedulable"]
    assert error.what == (
        "2 of 3 nodes of run cannot be scheduled: Insufficient nvidia.com/gpu, Insufficient cpu"
    )
    assert error.why == said, "word for word: people search for it"


def test_a_sentence_of_another_scheduler_is_shown_as_it_is() -> None:
    error = told(look(unplaced("a", "3/3 tasks in gang unschedulable: pod group is not ready")))
    assert error["unschedulable"].why == "3/3 tasks in gang unschedulable: pod group is not ready"


def test_a_pod_that_a_queue_holds_back_is_no_trouble() -> None:
    assert told(look(unplaced("a", "", "SchedulingGated"))) == {}


def test_a_secret_that_is_missing_is_told_but_not_the_token_that_comes_by_itself() -> None:
    missing = waits("a", "CreateContainerConfigError", 'secret "wandb" not found')
    assert told(look(missing))["pod-unstartable"].why.endswith('secret "wandb" not found')
    soon = waits("a", "CreateContainerConfigError", 'secret "run-token" not found')
    assert told(look(soon)) == {}


def claim(name: str, phase: str) -> ClaimObject:
    return msgspec.convert({"metadata": {"name": name}, "status": {"phase": phase}}, ClaimObject)


def test_a_claim_without_a_volume_says_why_its_provisioner_says() -> None:
    seen = look(
        unplaced("a", "pod has unbound immediate PersistentVolumeClaims"),
        checkpoints={"shared": {"pvc": "ckpt"}},
    )
    why = event("ckpt", 'storageclass "fast" not found', "ProvisioningFailed", CLAIM)
    [error] = told(seen, Evidence([why], [claim("ckpt", "Pending")])).values()
    assert (error.slug, error.why) == ("claim-pending", 'storageclass "fast" not found')
    assert "kubectl describe pvc ckpt -n team" in error.help
    [error] = told(seen, Evidence([], [])).values()
    assert (error.slug, error.why) == ("claim-pending", "it does not exist")


CLAIM = "PersistentVolumeClaim"


def test_claims_that_may_not_be_seen_are_not_said_to_be_missing() -> None:
    seen = look(unplaced("a", 'persistentvolumeclaim "d" not found'),
                datasets=[{"name": "d", "path": "/d", "pvc": "d"}])  # fmt: skip
    assert told(seen) == {}


def test_an_engine_that_may_not_make_pods_is_quoted() -> None:
    said = event("run", 'Error creating: pods "run-0-x" is forbidden: exceeded quota: q, used: 0')
    assert "quota-exceeded" in told(look(), Evidence([said]))
    other = event("run-node-0", 'admission webhook "kyverno" denied the request: no latest tag')
    assert "admission-refused" in told(look(), Evidence([other]))


def test_an_old_event_counts_no_more_once_all_pods_are_there() -> None:
    said = event("run", "Error creating: exceeded quota")
    assert told(look(*map(runs, "abc"), runs("x", "controller")), Evidence([said])) == {}


def test_an_event_of_another_job_is_none_of_ours() -> None:
    assert told(look(), Evidence([event("runner", "exceeded quota")])) == {}


def test_what_the_controller_was_refused_is_told_from_the_record() -> None:
    seen = look(waiting_for='the cluster to accept its pods: pods "run-0" is forbidden: '
                "exceeded quota: q")  # fmt: skip
    assert "quota-exceeded" in told(seen)


def test_without_a_record_the_status_says_what_the_controller_waits_for() -> None:
    found = status(look(waits("x", "ErrImagePull", "no such tag", "controller")))
    assert (found.phase, found.controller) == ("waiting", "starting")
    assert found.waiting_for == (
        "its controller, which is waiting for its image (ErrImagePull): no such tag"
    )


def test_a_record_whose_controller_is_gone_says_so() -> None:
    found = status(look(waiting_for=""))
    assert (found.controller, found.waiting_for) == ("starting", "its controller to be started")

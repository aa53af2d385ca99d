"""What the operator decides about a TrainingJob, from what it knows."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.drivers.kubernetes.cluster import timestamp
from holdfast.messages import UpdateJob
from holdfast.operator.conditions import seconds, status_of
from holdfast.operator.decide import Known, Step, decide
from holdfast.operator.definition import CONDITIONS, STATUS
from holdfast.operator.events import said
from holdfast.operator.updating import SpecUpdate
from holdfast.status import JobStatus, NodeStatus

NOW = 1_700_000_000.0


def record(phase: str = "running", outcome: str | None = None, **keys: Any) -> JobStatus:
    """A job's status as its controller publishes it."""
    nodes = (NodeStatus(name="n", state="member", rank=0, node="u"),)
    found: dict[str, Any] = {
        "job": "run", "phase": phase, "attempt": 1, "step": 7, "ettr": 0.98765, "nodes": nodes,
        "incidents_count": 0, "restarts_count": 0, "waiting_for": None, "started_at": NOW,
        "wall_s": 9.0, "outcome": outcome,
    }  # fmt: skip
    return JobStatus(**{**found, **keys})


FRESH = Known(
    status={}, suspend=False, keep_s=None, digest="d", managed=True, stop_limit_s=100.0,
    record=None, outcome=None, there=0, foreign=None, retired=False, now=NOW,
)  # fmt: skip
RUNS = replace(FRESH, status={"startedSpec": "d"}, record=record(), there=3)
ORDER = UpdateJob(by="TrainingJob", id="spec-2", args=("--lr", "2"))
SUSPENDED = {"conditions": [{"type": "Suspended", "status": "True", "reason": "Suspended"}]}
STOPPING = {"conditions": [{"type": "Suspended", "status": "False", "reason": "Stopping"}]}
STOPPED = replace(RUNS, record=record("stopped", "stopped"), outcome="stopped")


def ended(outcome: str, **keys: Any) -> Known:
    return replace(RUNS, record=record(outcome, outcome), outcome=outcome, **keys)


@pytest.mark.parametrize(
    ("known", "step", "phase"),
    [
        (FRESH, Step.MAKE, None),
        (RUNS, Step.MAKE, None),
        (replace(FRESH, foreign="ConfigMap run-job"), Step.WATCH, "Blocked"),
        (replace(FRESH, record=record()), Step.WATCH, "Blocked"),
        (replace(RUNS, digest="other"), Step.WATCH, None),
        (replace(RUNS, digest="other", there=0), Step.MAKE, None),
        (replace(RUNS, digest="other", update=SpecUpdate(ask=ORDER)), Step.UPDATE, None),
        (replace(RUNS, digest="other", update=SpecUpdate(asked=ORDER)), Step.MAKE, None),
        (replace(RUNS, update=SpecUpdate(waits=True)), Step.WATCH, None),
        (replace(RUNS, suspend=True, update=SpecUpdate(ask=ORDER)), Step.ASK_STOP, "Suspending"),
        (ended("succeeded", update=SpecUpdate(ask=ORDER)), Step.WATCH, None),
        (replace(RUNS, retired=True), Step.WATCH, None),
        (ended("succeeded"), Step.WATCH, None),
        (ended("failed", there=0), Step.WATCH, None),
        (STOPPED, Step.WATCH, None),
        (ended("succeeded", keep_s=10, ended_at=NOW - 11), Step.EXPIRE, None),
        (ended("succeeded", keep_s=10, ended_at=NOW - 9), Step.WATCH, None),
        (ended("succeeded", suspend=True), Step.WATCH, None),
        (replace(FRESH, suspend=True), Step.WATCH, "Suspended"),
        (replace(RUNS, suspend=True), Step.ASK_STOP, "Suspending"),
        (replace(RUNS, suspend=True, record=None), Step.CLEAR, "Suspending"),
        (replace(RUNS, suspend=True, managed=False), Step.CLEAR, "Suspending"),
        (replace(RUNS, suspend=True, stopping_since=NOW - 101), Step.CLEAR, "Suspending"),
        (replace(RUNS, suspend=True, stopping_since=NOW - 99), Step.ASK_STOP, "Suspending"),
        (replace(STOPPED, suspend=True), Step.CLEAR, "Suspending"),
        (replace(STOPPED, suspend=True, there=0), Step.WATCH, "Suspended"),
        (replace(STOPPED, suspend=True, there=0, pods=1), Step.CLEAR, "Suspending"),
        (replace(RUNS, suspend=True, there=0, pods=1), Step.CLEAR, "Suspending"),
        (replace(FRESH, status=SUSPENDED, pods=1), Step.RENEW, "Suspended"),
        (replace(FRESH, pods=1), Step.MAKE, None),
        (replace(FRESH, status=SUSPENDED), Step.MAKE, None),
        (replace(STOPPED, status=SUSPENDED, there=0), Step.RENEW, "Suspended"),
        (replace(RUNS, status=SUSPENDED, record=None), Step.RENEW, "Suspended"),
        (replace(RUNS, status=STOPPING), Step.ASK_STOP, "Suspending"),
        (replace(STOPPED, status=STOPPING), Step.RENEW, "Suspended"),
    ],
)
def test_each_situation_has_its_step(known: Known, step: Step, phase: str | None) -> None:
    found = decide(known)
    assert (found.step, found.phase) == (step, phase)


def told_by_something(known: Known) -> Known:
    """An outcome is read from the record or, in plain mode, from the object that makes the pods."""
    silent = known.record is None and known.there == 0
    return replace(known, outcome=None) if silent else known


knowns = st.builds(
    Known,
    status=st.sampled_from([{}, SUSPENDED, STOPPING, {"startedSpec": "d"}, {"startedSpec": "x"}]),
    suspend=st.booleans(),
    keep_s=st.sampled_from([None, 10]),
    digest=st.just("d"),
    managed=st.booleans(),
    stop_limit_s=st.just(100.0),
    record=st.sampled_from([None, record(), record("stopped", "stopped")]),
    outcome=st.sampled_from([None, "succeeded", "failed", "gave_up", "stopped"]),
    there=st.integers(0, 3),
    foreign=st.sampled_from([None, None, None, "Job run"]),
    pods=st.sampled_from([0, 0, 2]),
    retired=st.booleans(),
    now=st.just(NOW),
    ended_at=st.sampled_from([None, NOW - 20, NOW]),
    stopping_since=st.sampled_from([None, NOW - 200, NOW]),
).map(told_by_something)


@given(knowns)
def test_nothing_is_made_or_removed_that_should_not_be(known: Known) -> None:
    step = decide(known).step
    if known.foreign:
        assert step is Step.WATCH
    if step is Step.MAKE:
        assert not known.suspend and known.outcome is None
    if step is Step.RENEW:
        assert not known.suspend and known.status in (SUSPENDED, STOPPING)
    if step in (Step.CLEAR, Step.ASK_STOP):
        assert known.suspend or known.status in (SUSPENDED, STOPPING)
    if step is Step.EXPIRE:
        assert known.outcome and known.keep_s is not None


@given(knowns)
def test_a_status_is_always_whole_and_steady(known: Known) -> None:
    decision = decide(known)
    new = told(known)
    assert [c["type"] for c in new["conditions"]] == list(CONDITIONS)
    assert all(c["reason"] and c["reason"].isalnum() for c in new["conditions"])
    assert set(new) <= {*STATUS, "conditions", "history"}
    again = told(replace(known, status=new), at=NOW + 60, decision=decision)
    assert {**again} == {**new}, "the same news, told later, changes nothing"
    assert not list(said(new, again))


def told(known: Known, at: float = NOW, decision: Any = None) -> dict[str, Any]:
    return status_of(
        known.status if "phase" in known.status else {},
        decision or decide(known),
        known.record,
        outcome=known.outcome,
        waiting_for=None,
        nodes=2,
        generation=1,
        now=at,
    )


@pytest.mark.parametrize(
    "known", [replace(STOPPED, suspend=True), replace(STOPPED, status=SUSPENDED)]
)
def test_what_does_not_go_is_told_and_looked_at_now_and_then(known: Known) -> None:
    soon, held = decide(known), decide(replace(known, held="Job run: finalizer x"))
    assert (held.step, held.message) == (soon.step, "Job run: finalizer x")
    assert held.after_s is not None and soon.after_s is not None and held.after_s > soon.after_s


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2023-11-14T22:13:20Z", NOW),
        ("2023-11-14T23:13:20.5+01:00", NOW + 0.5),
        ("yesterday", None),
        ("", None),
        (None, None),
    ],
)
def test_a_time_in_a_status_may_be_written_by_others(text: str | None, at: float | None) -> None:
    assert seconds(text) == at


def test_the_status_shows_what_the_record_says() -> None:
    found = told(RUNS)
    assert (found["phase"], found["nodes"], found["step"]) == ("Running", "1/2", 7)
    assert found["ettr"] == 0.9877
    assert {c["type"]: c["status"] for c in found["conditions"]} == {
        "Accepted": "True", "Running": "True", "Recovering": "False",
        "Suspended": "False", "Complete": "False", "Failed": "False",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("outcome", "phase", "complete", "failed"),
    [
        ("succeeded", "Succeeded", "True", "False"),
        ("failed", "Failed", "False", "True"),
        ("gave_up", "GaveUp", "False", "True"),
        ("stopped", "Stopped", "False", "True"),
    ],
)
def test_the_end_is_a_condition(outcome: str, phase: str, complete: str, failed: str) -> None:
    found = told(ended(outcome))
    marks = {c["type"]: c["status"] for c in found["conditions"]}
    assert (found["phase"], marks["Complete"], marks["Failed"]) == (phase, complete, failed)
    assert found["completionTime"] == timestamp(NOW)


def test_a_changed_condition_has_a_new_time_and_the_others_keep_theirs() -> None:
    first = told(RUNS)
    later = replace(RUNS, status={**first, "startedSpec": "d"}, record=record("recovering"))
    times = {c["type"]: c["lastTransitionTime"] for c in told(later, at=NOW + 60)["conditions"]}
    assert times["Recovering"] == times["Running"] == timestamp(NOW + 60)
    assert times["Accepted"] == timestamp(NOW)


def test_events_tell_of_phases_restarts_and_waiting() -> None:
    before, after = told(RUNS), told(replace(RUNS, record=record("recovering", restarts_count=2)))
    waits = told(replace(RUNS, record=record("waiting", waiting_for="machines")))
    assert [(e.reason, e.warning) for e in said(before, after)] == [
        ("Recovering", True), ("Restarted", False),
    ]  # fmt: skip
    assert [e.message for e in said(before, waits)][-1] == "waiting for machines"
    nodes = "2 of 3 nodes wait for the engine to create them"
    assert [e.message for e in said(before, waits | {"waitingFor": nodes})][-1] == nodes


def test_times_are_read_as_they_are_written() -> None:
    assert seconds(timestamp(NOW)) == NOW
    assert seconds(None) is None

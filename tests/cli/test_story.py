"""Sentences a person reads at night."""

import msgspec
import pytest

from holdfast.cli import evidence, story, why
from holdfast.cli.incidents import row
from holdfast.controller import IncidentRecord
from holdfast.evidence import NodeEvidence, RankEvidence
from holdfast.status import (
    ActionTaken,
    Alternative,
    Choice,
    Copies,
    Goodput,
    Incident,
    JobStatus,
    NodeStatus,
    Note,
    TierStatus,
    TimedFact,
    UpdateStatus,
)

SUMMARY = "Rank 1 failed with ValueError: bad (train.py:4)"
STATUS = JobStatus(
    job="gpt",
    phase="running",
    attempt=2,
    step=120,
    ettr=0.9312,
    nodes=(NodeStatus(name="node-0", state="member", rank=0, node="uid"),),
    incidents_count=1,
    restarts_count=1,
    waiting_for=None,
    started_at=0.0,
    wall_s=61.5,
    loss=2.5,
    step_time_s=0.05,
    why="attempt 2 trains",
)


def record(*actions: tuple[str, str]) -> IncidentRecord:
    return IncidentRecord(
        id=3,
        cause="worker-exception",
        summary=SUMMARY,
        node="node-1",
        rank=1,
        attempt=2,
        step=40,
        started_at=100.0,
        detected_at=100.1,
        ended_at=101.5,
        steps_lost=1,
        actions=[ActionTaken(at=100.1, action=a, reason=r) for a, r in actions],
    )


def test_what_was_noticed_and_stopped_nothing_is_a_note_and_a_nan_is_named() -> None:
    text = "the loss rose to 60 at step 50 on rank 1, from a median of 2.2"
    note = Note(at=100.0, attempt=2, step=50, rank=1, text=text)
    status = msgspec.structs.replace(STATUS, notes=(note,), loss=None, loss_is="nan")
    assert story.notes(status) == [f"{story.clock(100.0)}, attempt 2: {text}"]
    older = msgspec.structs.replace(note, text="older")
    several = msgspec.structs.replace(status, notes=(older, note))
    assert dict(story.status_lines(several))["note"].endswith(text)
    assert "loss nan" in story.training(status)
    assert story.notes(STATUS) == [] and "loss 2.5000" in story.training(STATUS)


def test_an_incident_is_one_line_what_where_and_what_is_done() -> None:
    told = story.opened(
        record(
            ("StopAttempt", "rank 1 on node-1 ended with exit status 1"),
            ("Wait", "2 attempts in a row without progress: next in 2 s"),
            ("StartAttempt", f"restart after: {SUMMARY}"),
        )
    )
    assert told == (
        f"incident 3: {SUMMARY} (rank 1 on node-1, attempt 2, step 40)"
        " -> 2 attempts in a row without progress: next in 2 s; restart"
    )


def test_training_again_is_said_only_where_it_was_not_overtaken_by_the_next_incident() -> None:
    assert story.closed(record()) == "incident 3: training again after 1.5 s, 1 step lost"
    overtaken = msgspec.structs.replace(record(), overtaken=True)
    told = "not over when the next incident began, 1.5 s later"
    assert story.closed(overtaken) == f"incident 3: {told}"
    over = msgspec.structs.replace(incident(detected_at=0.1, ended_at=1.5), overtaken=True)
    assert "the next incident begins" in story.course(over)[-1]


def test_the_course_of_an_incident_is_told_in_order_with_times() -> None:
    actions = (
        ActionTaken(at=0.2, action="StopAttempt", reason=SUMMARY),
        ActionTaken(at=1.0, action="StartAttempt", reason=f"restart after: {SUMMARY}"),
    )
    told = story.course(incident(detected_at=0.1, ended_at=1.5, actions=actions))
    assert told == [
        "seen   after 100 ms: noticed",
        "done   after 200 ms: stop the attempt",
        "done   after 1.0 s: restart",
        "over   after 1.5 s: training is productive again",
    ]
    assert story.verdict(incident(confidence=0.57)) == "worker-killed (confidence 57 %)"


def test_facts_decisions_and_orders_are_one_story_and_say_nothing_twice() -> None:
    facts = (
        TimedFact(at=0.3, kind="suspected", text="suspected: no progress of rank 1 for 2.0 s"),
        TimedFact(at=0.3, kind="looked", text="look at all workers"),
        TimedFact(at=1.0, kind="judged", text=f"judged: a hang (confidence 90 %): {SUMMARY}"),
        TimedFact(at=1.0, kind="lost", text=SUMMARY),
        TimedFact(at=3.0, kind="first_step", text="attempt 2 has done its first step"),
    )
    actions = (ActionTaken(at=1.0, action="StopAttempt", reason=SUMMARY),)
    choice = Choice(at=2.0, about="attempt 1", cause="hang", step="restart", reason="cheapest")
    known = incident(facts=facts, actions=actions, choices=(choice,), detected_at=1.0)
    assert story.course(known) == [
        "seen   after 300 ms: suspected: no progress of rank 1 for 2.0 s",
        "done   after 300 ms: look at all workers",
        "seen   after 1.0 s: judged: a hang (confidence 90 %)",
        "done   after 1.0 s: stop the attempt",
        "next   after 2.0 s: for attempt 1: restart: cheapest",
        "seen   after 3.0 s: attempt 2 has done its first step",
    ]
    lost = incident(facts=facts[3:4], detected_at=1.0)
    assert story.course(lost) == ["seen   after 1.0 s: noticed"], "the summary says the rest"


def test_what_was_weighed_is_told_with_its_cost_and_why_it_was_not_taken() -> None:
    weighed = (
        Alternative(
            step="restart", cost_s=0.51, sufficient=True, why="no evidence against the nodes"
        ),
        Alternative(step="replace", cost_s=19.7, sufficient=True, why="fault 1 of node-1"),
        Alternative(step="wait", cost_s=2.6, sufficient=False, why="no node is missing"),
    )
    reason = weighed[0].why
    made = Choice(at=1.5, about="attempt 2", cause="device-error", step="restart", reason=reason,
                  alternatives=weighed)  # fmt: skip
    old = msgspec.structs.replace(made, alternatives=())
    told = story.course(incident(choices=(made, old)))
    assert told == [
        "next   after 1.5 s: for attempt 2: restart: no evidence against the nodes",
        "  > restart            510 ms  taken",
        "    replace            19.7 s  would do: fault 1 of node-1",
        "    wait                2.6 s  no node is missing",
        told[0],
    ]


def test_what_was_weighed_does_not_tell_for_each_step_again_what_happened() -> None:
    why = f"the same error repeated at the same place without progress: {SUMMARY}"
    weighed = (
        Alternative(step="restart", cost_s=0.51, sufficient=False, why=why),
        Alternative(step="wait", cost_s=2.6, sufficient=False, why=SUMMARY),
        Alternative(step="give-up", cost_s=3600.0, sufficient=True, why=why),
    )
    made = Choice(at=0.0, about="attempt 2", cause="worker-exception", step="give-up", reason=why,
                  alternatives=weighed)  # fmt: skip
    told = story.course(incident(choices=(made,)))
    assert told[0].endswith("give-up: the same error repeated at the same place without progress")
    assert told[1].endswith(" the same error repeated at the same place without progress")
    assert told[2].endswith(f" {SUMMARY}"), "it would have no reason at all"


def test_how_the_nodes_were_is_told_and_no_output_twice() -> None:
    failed = RankEvidence(rank=1, ended="signal 9", page="step 3 done 1.0 s ago", output=("bye",))
    other = RankEvidence(rank=0, output=("waits",), stacks=("main of process 7: read < loop",))
    node = NodeEvidence(node="n", ranks=(failed, other), host=("load: 1",), kernel=("[1.0] oom",))
    deaf = NodeEvidence(node="m", kernel_unread="/dev/kmsg: Operation not permitted")
    found = incident(collected=(node, deaf), missing=("lost",))
    told = [line.strip() for line in evidence.nodes(found, with_output=False)]
    assert told == [
        "n:", "load: 1", "rank 1: signal 9, step 3 done 1.0 s ago",
        "rank 0, all its threads and processes:", "main of process 7: read < loop",
        "rank 0 had printed:", "waits",
        "kernel log:", "[1.0] oom",
        "m:", "kernel log: not readable: /dev/kmsg: Operation not permitted",
        "no answer from: lost",
    ]  # fmt: skip
    assert "bye" in "".join(evidence.nodes(found, with_output=True))


def test_where_a_rank_that_hung_stood_in_c_is_told() -> None:
    stack = ("futex_wait (libc.so.6)", "step (train.py:7)")
    node = NodeEvidence(node="n", ranks=(RankEvidence(rank=1, native_stack=stack),))
    told = [line.strip() for line in evidence.nodes(incident(collected=(node,)), with_output=False)]
    assert told[1:4] == ["native stack of rank 1 (innermost frame first):", *stack]


def test_an_end_says_why_without_repeating_what_happened() -> None:
    reason = f"the same error came back: {SUMMARY}"
    assert story.opened(record(("EndJob", reason))).endswith(
        "-> end the job: the same error came back"
    )


def test_an_end_for_just_what_happened_has_no_empty_reason() -> None:
    assert story.opened(record(("EndJob", SUMMARY))).endswith("-> end the job")
    used = record(("EndJob", f"no restart is allowed; last: {SUMMARY}"))
    assert story.opened(used).endswith("-> end the job: no restart is allowed")


def test_the_traceback_of_an_error_of_ours_shows_the_frames_of_the_script_alone() -> None:
    script = '  File "/app/train.py", line 9, in <module>\n    for _ in state.steps(9):\n'
    library = '  File "/site/holdfast/train/state.py", line 7, in steps\n    self.restore()\n'
    head = "Traceback (most recent call last):\n"
    said = "holdfast.errors.Error: error[checkpoint-unusable]: no\n  why: a\n  help: b"
    assert story.traceback(f"{head}{script}{library}{said}\n") == f"{head}{script}{said}"
    foreign = f"{head}{script}{library}ValueError: no"
    assert story.traceback(foreign) == foreign


def test_recovery_says_how_long_it_took_and_what_it_cost() -> None:
    assert story.closed(record()) == "incident 3: training again after 1.5 s, 1 step lost"


@pytest.mark.parametrize(
    ("also_failed", "rank", "text"),
    [
        (511, 7, "1 rank failed first, 511 followed"),
        (0, 7, "1 rank failed"),
        (3, None, "the node failed first, 3 followed"),
        (0, None, ""),
    ],
)
def test_one_cause_stands_on_top(also_failed: int, rank: int | None, text: str) -> None:
    assert story.followers(incident(also_failed=also_failed, rank=rank)) == text


def test_evidence_of_ranks_that_stand_still_is_not_of_one_that_failed() -> None:
    assert story.followers(incident(cause="hang", evidence=("rank 1: sleep",))) == ""
    again = incident(evidence=("the same error occurred twice",), traceback="ValueError: bad")
    assert story.followers(again) == "1 rank failed"


def test_the_bill_lists_its_largest_part_first() -> None:
    bill = {"detect": 0.001, "replay": 2.0, "restore_memory": 0.25, "other": 0.0}
    told = story.bill(incident(bill=bill, lost_s=2.251, steps_lost=15))
    assert told == "2.3 s, 15 steps redone (replay 2.0 s, restore_memory 250 ms, detect 1 ms)"


def incident(**changes: object) -> Incident:
    one = Incident(
        id=1,
        cause="worker-killed",
        summary=SUMMARY,
        node="node-1",
        rank=1,
        attempt=1,
        step=None,
        started_at=0.0,
        ended_at=None,
        lost_s=0.0,
        steps_lost=0,
        bill={},
        actions=(),
    )
    return msgspec.structs.replace(one, **changes)


def test_who_could_not_reach_whom_is_told_with_the_incident(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = "node-3 cannot reach node-5 (timed out after 2 s); 2 others can"
    why._print(STATUS, incident(network=(line,)), 1, [], "")
    assert f"  reach  {line}\n" in capsys.readouterr().out


def test_after_an_incident_what_the_job_waits_for_is_told_with_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lacks = "Ray, to place 1 of its nodes (node-1); each asks for {GPU: 8}; free: {GPU: 0 of 16}"
    waits = msgspec.structs.replace(STATUS, phase="waiting", waiting_for=lacks)
    why._print(waits, incident(), 1, [], "")
    assert f"\n  waits  for {lacks}\n" in capsys.readouterr().out
    why._print(STATUS, incident(), 1, [], "")
    assert "  waits  " not in capsys.readouterr().out


FORCED = "holdfast stop --force: 2 nodes were not reached (ray-unreachable)"


@pytest.mark.parametrize(
    ("changes", "did", "told"),
    [
        ({"phase": "stopped", "outcome": "stopped", "why": FORCED}, "restart", FORCED),
        ({"why": "Idle for 75 s: rank 0 sleeps in wait (poll.py:7)"}, "restart", "Idle for 75 s"),
        (
            {"phase": "failed", "outcome": "failed", "why": "no restarts left"},
            "no restarts left",
            None,
        ),
        ({"why": "attempt 2 trains"}, "restart", None),
        ({"why": None}, "restart", None),
    ],
)
def test_after_an_incident_the_reason_of_the_job_is_told_where_it_is_another(
    capsys: pytest.CaptureFixture[str], changes: dict[str, str | None], did: str, told: str | None
) -> None:
    action = ActionTaken(at=1.0, action="StartAttempt", reason=did)
    status = msgspec.structs.replace(STATUS, **changes)
    why._print(status, incident(actions=(action,)), 1, [], "")
    said = capsys.readouterr().out
    assert (f"\n  why    {told}" in said) if told else ("\n  why    " not in said)


def test_every_node_of_an_incident_is_named() -> None:
    lost = incident(rank=None, node="b", nodes=("b", "c", "a"))
    assert story.place(lost) == "b, c, a, attempt 1"
    assert row(lost)[3] == "b +2"
    assert row(incident())[3] == "node-1"


def test_a_status_is_readable_at_a_glance() -> None:
    text = story.labelled(story.status_lines(STATUS))
    assert "running, attempt 2" in text
    assert "step 120, loss 2.5000, 50 ms a step" in text
    assert "93.1 % of 1 min 2 s, 1 incident, 1 restart" in text
    assert "node-0: member, node rank 0" in text


def test_a_job_without_its_controller_says_what_to_do() -> None:
    away = msgspec.structs.replace(STATUS, controller="away")
    assert "its controller has died: holdfast resume gpt" in story.one_line(away)


def test_an_ended_job_has_no_nodes_and_one_last_line() -> None:
    ended = msgspec.structs.replace(STATUS, outcome="gave_up", controller="ended")
    assert "node-0" not in story.labelled(story.status_lines(ended))
    assert story.ending(ended) == (
        "gpt gave up after 1 min 2 s, 120 steps; ETTR 93.1 %, 1 incident, 1 restart"
    )


def test_the_rows_of_the_ledger_end_with_the_wall_time() -> None:
    buckets = {"detect": 0.5, "productive": 9.5, "hang": 0.0}
    goodput = Goodput(
        job="gpt", wall_s=10.0, ettr=0.95, ettr_1h=0.95, buckets=buckets, observed=True
    )
    assert story.bucket_rows(goodput) == [
        ("productive", "9.500", "95.0 %"),
        ("detect", "0.500", "5.0 %"),
        ("wall time", "10.000", "100.0 %"),
    ]


def tier(**changes: object) -> TierStatus:
    """A tier that works."""
    good = TierStatus(
        tier="shared", step=400, attempt=2, age_s=90.0, every_s=600.0, seconds=12.0,
        bytes=3 << 30, commits_count=5, failures=0, failures_count=0,
    )  # fmt: skip
    return msgspec.structs.replace(good, **changes)


def test_a_checkpoint_is_told_with_its_age_cadence_and_cost_and_what_fails() -> None:
    told = story.checkpoint(tier())
    assert told == "shared: step 400, 1 min 30 s old, every 10 min 0 s, 12.0 s and 3072.0 MiB each"
    broken = story.checkpoint(tier(failures=3, why="no room"))
    assert broken.endswith("; last 3 saves failed: no room")
    nothing = tier(step=None, age_s=None)
    assert story.checkpoint(nothing) == "shared: nothing committed yet, every 10 min 0 s"


def test_the_status_says_which_losses_memory_survives() -> None:
    status = msgspec.structs.replace(STATUS, copies=Copies(holders=2, survives=1, next_loss=0.875))
    told = dict(story.status_lines(status))["copies"]
    assert told == (
        "any 1 node may be lost without restoring a checkpoint; "
        "2 at once with probability 0.875 or better"
    )
    assert "copies" not in dict(story.status_lines(STATUS))
    hopeless = msgspec.structs.replace(status, copies=Copies(holders=2, survives=1, next_loss=0.0))
    assert story.copies(hopeless) == "any 1 node may be lost without restoring a checkpoint"


def test_a_version_is_told_by_all_that_makes_it_another_one() -> None:
    """An update of a TrainingJob gives all arguments and variables anew."""
    made = UpdateStatus(
        version=2, id="u", by="TrainingJob", at=0.0, when="next-step", stage="used", why=None,
        code=None, sets={"env.A": "1"}, back=False, attempt=2, incidents=(),
        image="train:2", args=("--lr", "0.1", "--name", "a b"),
    )  # fmt: skip
    told = story.version(msgspec.structs.replace(STATUS, version=2, updates=(made,)))
    assert told == "2: image train:2, arguments --lr 0.1 --name 'a b', env.A=1"

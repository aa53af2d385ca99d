"""A new version of Holdfast takes a job over, after any line of its journal.

`recorded_journals` has journals of simulated jobs (`World(draw(seed, hours=6.0, nodes=8))`) as the
version of that day wrote them: the limits of the job, then the journal. Policies have changed
since, so this version decides otherwise about some of their facts. When a policy changes what is
decided, add journals of the version before; never replace these.
"""

import gzip
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast import journal
from holdfast.actions import AnyAction, EndJob, Entry, StartAttempt, StopAttempt
from holdfast.controller import Controller, Limits, profiles
from holdfast.controller.invariants import check
from holdfast.controller.phases import Phase
from holdfast.controller.state import State
from holdfast.events import (
    AnyEvent,
    AttemptStopped,
    ControllerResumed,
    Diagnosed,
    JobSubmitted,
    Milestone,
    MilestoneReached,
    NodeJoined,
    NodeReady,
    Store,
    WorkerExited,
)
from holdfast.profiles import StepsSlowed
from holdfast.replay import read_state, replay

RECORDED = sorted(Path(__file__).with_name("recorded_journals").glob("*.jsonl.gz"))
HEARD = profiles.heard
BEGIN = journal.Header(journal=journal.VERSION, holdfast="0", job={"name": "x"}, created_at=1.0)


def recorded(file: Path) -> tuple[Limits, list[bytes]]:
    """The limits of the job and the lines of its journal."""
    first, *rest = gzip.decompress(file.read_bytes()).splitlines(keepends=True)
    return msgspec.json.decode(first, type=Limits), rest


def takeovers(file: Path, path: Path) -> Iterator[tuple[list[Entry], Controller, journal.Journal]]:
    """What was ordered before, and the controller that takes over, after each of its lines."""
    limits, (header, *rest) = recorded(file)
    entries = [msgspec.json.decode(line, type=Entry) for line in rest]
    for count in range(1, len(entries) + 1):
        path.write_bytes(header + b"".join(rest[:count]))
        controller, book = replay(path, limits, lambda _: None)
        yield entries[:count], controller, book
        book.close()


def ordered(entries: list[Entry]) -> list[AnyAction]:
    return [action for entry in entries for action in entry.actions]


def attempts(actions: list[AnyAction]) -> list[int]:
    return [action.attempt for action in actions if isinstance(action, StartAttempt)]


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.name.removesuffix(".jsonl.gz"))
def test_a_controller_of_this_version_takes_over_after_any_line(file: Path, tmp_path: Path) -> None:
    """No number of an attempt is given twice, and what has ended has ended."""
    overtaken = 0
    for entries, controller, book in takeovers(file, tmp_path / "journal.jsonl"):
        state, before = controller.state, ordered(entries)
        assert state.ended == any(isinstance(one, EndJob) for one in before)
        resumed = ControllerResumed(
            existing=tuple(state.nodes), obeyed=book.obeyed, diverged=book.diverged
        )
        after = controller.handle(resumed, state.now + 1.0)
        check(state)
        if not book.obeyed or state.ended:
            continue
        overtaken += 1
        assert [one.attempt for one in after if isinstance(one, StopAttempt)] == [book.obeyed]
        after = [*controller.handle(_stopped(state), state.now + 1.0), *_judged(controller)]
        check(state)
        assert min(attempts(after), default=book.obeyed + 1) > max([0, *attempts(before)])
    assert overtaken or file.name != "2026-11-26-seed-23.jsonl.gz", "it has such a moment"


def _stopped(state: State) -> AttemptStopped:
    return AttemptStopped(attempt=state.attempt, store=Store("h", 999, True))


def _judged(controller: Controller) -> list[AnyAction]:
    state = controller.state
    if state.phase is not Phase.RECOVERING:
        return []
    verdict = Diagnosed(attempt=state.attempt, cause="exited", summary="x", confidence=0.5)
    return controller.handle(verdict, state.now + 1.0)


def test_a_job_that_ended_by_rules_of_its_time_has_ended_so(tmp_path: Path) -> None:
    """This version would have waited for nodes when that one gave up."""
    limits, lines = recorded(next(file for file in RECORDED if file.name.endswith("-31.jsonl.gz")))
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b"".join(lines))
    (end,) = [one for one in ordered([*journal.entries(path)]) if isinstance(one, EndJob)]
    state = read_state(path, limits)
    assert (state.outcome, state.why) == (end.outcome, end.reason)


def slowed(state: State, event: StepsSlowed) -> list[AnyAction]:
    """What was done about slow steps before links were measured at the end of the attempt."""
    actions = HEARD(state, event)
    state.slowed = 0
    return actions


SLOW: list[AnyEvent] = [
    JobSubmitted(),
    NodeJoined(node="a", name="node-0", address="127.0.0.1", workers=1),
    NodeReady(node="a", store=Store("127.0.0.1", 1, True), instrumented=True),
    MilestoneReached(attempt=1, milestone=Milestone.STARTED),
    MilestoneReached(attempt=1, milestone=Milestone.FIRST_STEP),
    StepsSlowed(attempt=1, step=9, slower=0.5, step_s=1.5, usual_s=1.0),
    WorkerExited(node="a", attempt=1, rank=0, exit_code=None, signal=9),
    AttemptStopped(attempt=1, store=Store("127.0.0.1", 2, True)),
    Diagnosed(attempt=1, cause="killed", summary="x", confidence=0.5),
]


def test_a_job_whose_steps_became_slow_goes_on_after_an_upgrade(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its links would have been measured before attempt 2, which was started at once: the journal
    was refused, as that of another attempt."""
    limits = Limits(node_count=1, checks="spares", profile_slowdown=0.2)
    path = tmp_path / "journal.jsonl"
    controller, book = Controller(limits), journal.Journal.create(path, BEGIN)
    with monkeypatch.context() as older:
        older.setattr(profiles, "heard", slowed)
        for seq, event in enumerate(SLOW, 1):
            at = float(seq)
            book.append(Entry(seq, at, event, tuple(controller.handle(event, at))))
    book.close()
    assert controller.state.attempt == 2
    taken, book = replay(path, limits, lambda _: None)
    book.close()
    assert taken.state.attempt == 1 and book.obeyed == 2
    event = ControllerResumed(existing=("a",), obeyed=book.obeyed, diverged=book.diverged)
    assert [one.attempt for one in taken.handle(event, 20.0) if isinstance(one, StopAttempt)] == [2]
    check(taken.state)

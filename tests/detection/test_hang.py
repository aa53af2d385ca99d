"""Nobody is suspected who moves as it has moved before; whoever stands still is, in seconds."""

import itertools
import math
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import noise
from holdfast.detection.hang import (
    BEGIN_MIN_S,
    BEGIN_S,
    FLOOR_S,
    PAUSES,
    SECTION_FLOOR_S,
    STORAGE_FLOOR_S,
    HangWatch,
)
from holdfast.events import HangSuspected, Milestone, Progress, each_of
from holdfast.messages import SAVES, Report, WorkerReport
from tests.more import MORE, examples, thinned

TIMEOUT_S = 600.0
LOOK_S = 0.2
JOINED = frozenset((Milestone.STARTED, Milestone.ARRIVED, Milestone.JOINED, Milestone.RESTORED))
TRAINED = JOINED | {Milestone.FIRST_STEP, Milestone.CAUGHT_UP}


class Job:
    """Ranks whose pages say what the test wants, read as often as a controller would."""

    def __init__(
        self, ranks: int = 2, timeout_s: float = TIMEOUT_S, step_timeout_s: float = 0.0
    ) -> None:
        self.now = 1000.0
        self.ranks = ranks
        self.watch = HangWatch(timeout_s, step_timeout_s)
        self.suspicions: list[HangSuspected] = []
        self.begin(1)

    def begin(self, attempt: int, reached: frozenset[Milestone] = JOINED) -> None:
        self.attempt, self.step, self.ended_at = attempt, -1, {}
        self.steps = dict.fromkeys(range(self.ranks), 0)
        self.ended_at = dict.fromkeys(range(self.ranks), self.now)
        self.phase = dict.fromkeys(range(self.ranks), "step")
        self.reached = dict.fromkeys(range(self.ranks), reached)
        self.step_s, self.finished, self.section = 0.05, False, ""
        self.start_s = 0.0  # from the start of the workers to their loop, as they tell it
        self.data_wait_s = 0.0
        self.watch.begin(attempt, self.ranks, self.now)
        self.tell()

    def tell(self) -> None:
        workers = tuple(
            WorkerReport(
                rank=rank,
                pid=1,
                progress=Progress(
                    step=step,
                    step_ago_s=self.now - self.ended_at[rank],
                    finished=self.finished,
                    data_wait_s=self.data_wait_s,
                ),
                milestones={
                    one: 1.0 + self.start_s * (one is Milestone.STARTED)
                    for one in self.reached[rank]
                },
                phase=self.phase[rank],
                section=self.section,
                step_time_s=self.step_s,
            )
            for rank, step in self.steps.items()
        )
        self.watch.observe(Report(node="n", attempt=self.attempt, workers=workers), self.now)

    def advance(self, step_s: float, *, stuck: frozenset[int] = frozenset()) -> None:
        """One step of all ranks but the stuck ones."""
        self.pass_by(step_s)
        self.step_s = step_s
        for rank in set(self.steps) - stuck:
            self.steps[rank] += 1
            self.ended_at[rank] = self.now
            self.reached[rank] = TRAINED

    def pass_by(self, seconds: float) -> None:
        """Time passes, and the controller looks."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(self.now + LOOK_S, end)
            self.tell()
            if self.watch.is_due(self.now):
                self.suspicions.append(self.watch.suspect(self.now))

    def trains(self, steps: int, step_s: float = 0.05) -> None:
        for _ in range(steps):
            self.advance(step_s)


def test_a_rank_that_stands_still_is_suspected_after_two_seconds_of_short_steps() -> None:
    job = Job(ranks=4)
    job.trains(100)
    for _ in range(3):
        job.advance(0.05, stuck=frozenset({2}))
    job.pass_by(2 * FLOOR_S)
    first = job.suspicions[0]
    assert FLOOR_S <= first.ago_s <= FLOOR_S + 2 * LOOK_S
    assert (first.attempt, first.step, list(each_of(first.ranks))) == (1, 100, [2])
    assert first.counted is None
    assert first.trained and first.step_s == pytest.approx(0.05)


def test_a_controller_that_takes_over_knows_how_long_workers_took_to_begin() -> None:
    job = Job()
    job.trains(20)
    job.start_s = 25.0
    job.watch = HangWatch(TIMEOUT_S)
    job.watch.begin(1, job.ranks, job.now)
    job.trains(20)
    job.begin(2, JOINED - {Milestone.RESTORED})
    job.pass_by(95.0)
    assert job.suspicions == []
    job.pass_by(10.0)
    assert job.suspicions


def test_long_steps_are_given_several_times_their_length() -> None:
    job = Job()
    job.trains(20, step_s=10.0)
    job.pass_by(49.0)
    assert job.suspicions == []
    job.pass_by(3.0)
    assert job.suspicions[0].ago_s == pytest.approx(50.0, abs=1.0)


def test_an_evaluation_every_fifty_steps_is_suspected_once() -> None:
    job = Job()
    for _ in range(20):
        job.trains(50)
        job.pass_by(7.0)
    assert 1 <= len(job.suspicions) <= 3
    assert all(s.step == 50 for s in job.suspicions)


def test_and_a_hang_after_that_when_it_has_lasted_longer_than_any_of_them() -> None:
    job = Job()
    for _ in range(5):
        job.trains(50)
        job.pass_by(7.0)
    job.suspicions.clear()
    job.pass_by(PAUSES * 7.0 + 2.0)
    assert PAUSES * 7.0 <= job.suspicions[0].ago_s <= PAUSES * 7.0 + 1.0


@settings(max_examples=examples(20), deadline=None)
@given(seed=st.integers(0, 2**32), median_s=st.sampled_from([0.02, 0.3, 2.0, 15.0]))
def test_steps_within_their_budget_raise_no_suspicion_once_they_are_known(
    seed: int, median_s: float
) -> None:
    """Log-normal, as step times of clusters are; one in a hundred takes four times as long."""
    dice, job = random.Random(seed), Job()
    job.trains(5, median_s)
    for _ in range(300):
        slow = 4.0 if dice.random() < 0.01 else 1.0
        job.advance(min(median_s * slow * dice.lognormvariate(0.0, 0.1), 4.9 * median_s))
    assert job.suspicions == []


RECORDINGS = sorted(noise.RECORDED.glob("noise-*.csv.gz"))
RECORDING = noise.RECORDED / "noise-2026-11-28.csv.gz"  # the one with the longest pauses
NOISE: dict[str, Callable[[int], Iterator[noise.Step]]] = {
    "recorded": partial(noise.resampled, noise.read(RECORDING)[1]),
    **{f"steps of {s:g} s": partial(noise.simulated, s) for s in (0.3, 0.05, 5.0)},
}


@pytest.mark.parametrize("kind", thinned(NOISE, 3))
def test_a_day_of_noisy_steps_raises_no_alarm(kind: str) -> None:
    """Workers are looked at now and then, which is cheap; nobody is judged to hang. Nothing of the
    noise is cut off to fit what is given."""
    hours = 24.0 if MORE else 1.0
    found = noise.lived(hours, NOISE[kind])
    assert found.hours >= hours and found.longest_s > 30.0
    assert 0 < found.suspicions < 60 * hours, "some pauses are longer than any before"
    assert found.alarms == ()


@pytest.mark.parametrize("kind", ["recorded", "steps of 0.3 s"])
def test_which_is_because_slow_workers_are_given_time(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for patience in ("SPIN_S", "SPIN_STEPS", "TOGETHER_S", "EXTERNAL_S"):
        monkeypatch.setattr(f"holdfast.diagnosis.hang.{patience}", 0.0)
    assert noise.lived(2.0, NOISE[kind]).alarms


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda path: path.name)
def test_of_a_recording_as_much_is_suspected_as_of_the_job_that_it_is_of(recording: Path) -> None:
    about, steps = noise.read(recording)
    found = noise.Watched(2).lives(steps, math.inf)
    told = about["suspicions"]
    assert isinstance(told, int) and told > 5 and about["false_alarms"] == 0
    assert found.suspicions == pytest.approx(told, abs=0.25 * told)
    assert found.alarms == ()


@pytest.mark.parametrize("what", ["save", "garbage"])
def test_and_one_that_does_not_go_on_is_judged_to_hang_after_all_that_noise(what: str) -> None:
    """It was never seen to need so long, whether it stands still in a file or computes."""
    steps = [*itertools.islice(noise.simulated(0.3, 0), 500)]
    stuck = noise.RankStep(0.0, 600.0, (noise.Did(what, 0.0, 600.0),))
    watched = noise.Watched(2)
    assert watched.lives(steps, math.inf).alarms == ()
    alarms = watched.lives([[stuck, noise.RankStep(0.0, 600.0)]], math.inf).alarms
    assert alarms and alarms[0].startswith("Rank 0 hung after step 500")


def test_compiling_before_the_first_step_is_given_minutes() -> None:
    job = Job()
    job.pass_by(BEGIN_S - 2.0)
    assert job.suspicions == []
    job.pass_by(4.0)
    assert job.suspicions[0].step == 0 and not job.suspicions[0].trained


def test_a_later_attempt_is_given_less_by_what_the_first_took() -> None:
    job = Job()
    job.pass_by(3.0)
    job.trains(10)
    job.begin(2)
    job.pass_by(BEGIN_MIN_S + 1.0)
    assert job.suspicions[0].ago_s == pytest.approx(BEGIN_MIN_S, abs=1.0)


@pytest.mark.parametrize("phase", ["data", "snapshot"])
def test_storage_is_sometimes_slow(phase: str) -> None:
    job = Job()
    job.trains(100)
    job.phase = dict.fromkeys(job.phase, phase)
    job.pass_by(STORAGE_FLOOR_S - 1.0)
    assert job.suspicions == []
    job.pass_by(2.0)
    assert len(job.suspicions) == 1


def test_a_section_is_given_a_minute_or_longer_than_any_before_it_also_where_others_wait() -> None:
    job = Job()
    job.trains(100)
    job.phase[0] = "section"
    job.pass_by(SECTION_FLOOR_S - 1.0)
    assert job.suspicions == []
    job.phase[0] = "step"
    job.trains(100)
    job.phase[0] = "section"
    job.pass_by(1.4 * SECTION_FLOOR_S)
    assert job.suspicions == []
    job.pass_by(0.2 * SECTION_FLOOR_S)
    assert len(job.suspicions) == 1


def test_and_steps_outside_of_it_are_given_no_longer_because_of_it() -> None:
    job = Job()
    job.trains(100)
    job.phase = dict.fromkeys(job.phase, "section")
    job.pass_by(50.0)
    job.phase = dict.fromkeys(job.phase, "step")
    job.trains(100)
    job.pass_by(FLOOR_S + 1.0)
    assert job.suspicions and job.suspicions[0].ago_s < FLOOR_S + 0.5


def test_one_rank_in_its_step_while_others_wait_for_data_is_not_storage() -> None:
    job = Job()
    job.trains(100)
    job.phase[0] = "data"
    job.pass_by(FLOOR_S + 1.0)
    assert len(job.suspicions) == 1


@pytest.mark.parametrize("phase", ["data", "step"])
def test_a_step_with_its_data_takes_no_longer_than_the_job_file_says(phase: str) -> None:
    job = Job(step_timeout_s=5.0)
    job.trains(100)
    job.pass_by(4.0)  # that is no reason for more patience
    job.trains(100)
    job.suspicions.clear()
    job.phase = dict.fromkeys(job.phase, phase)
    job.pass_by(5.5)
    assert job.suspicions[-1].overdue and 5.0 <= job.suspicions[-1].ago_s <= 5.3
    assert not any(one.overdue for one in job.suspicions[:-1])


def test_but_sections_snapshots_and_first_steps_do() -> None:
    job = Job(step_timeout_s=5.0)
    job.trains(4)
    job.pass_by(15.0)
    job.trains(100)
    for phase, seconds in (("section", SECTION_FLOOR_S), ("snapshot", STORAGE_FLOOR_S)):
        job.phase[0] = phase  # and the other one waits for it
        job.phase[1] = "step" if phase == "section" else phase
        job.pass_by(seconds - 1.0)
        assert job.suspicions == []
        job.phase = dict.fromkeys(job.phase, "step")
        job.trains(100)
    job.begin(2)
    job.pass_by(15.0)
    assert job.suspicions == []


@pytest.mark.parametrize("phase", ["section", "snapshot"])
def test_nor_does_who_waits_for_a_rank_that_has_just_come_to_one(phase: str) -> None:
    job = Job(step_timeout_s=5.0)
    job.trains(100)
    job.pass_by(4.0)
    job.phase[0] = phase
    job.pass_by(4.0)
    assert not any(one.overdue for one in job.suspicions)


def test_a_rank_whose_loop_ended_in_a_section_leaves_nobody_more_time() -> None:
    job = Job(step_timeout_s=5.0)
    job.trains(100)
    for phase in ("section", "finished"):
        job.phase[0] = phase
        job.pass_by(0.5)
    job.pass_by(5.0)
    assert job.suspicions[-1].overdue


def test_going_on_to_another_phase_is_a_sign_of_life() -> None:
    job = Job()
    job.trains(100)
    for phase in ("data", "step", "snapshot", "data", "step"):
        job.phase = dict.fromkeys(job.phase, phase)
        job.pass_by(FLOOR_S - 0.5)
    assert job.suspicions == []


def test_a_stall_is_suspected_ever_more_rarely_and_once_more_when_the_time_is_up() -> None:
    job = Job(timeout_s=100.0)
    job.trains(100)
    job.pass_by(130.0)
    lasted = [s.ago_s for s in job.suspicions]
    gaps = [later - before for before, later in itertools.pairwise(lasted)]
    assert len(lasted) < 15 and max(gaps) < 52.0
    assert any(100.0 <= s <= 100.5 for s in lasted)


def test_a_long_first_step_is_taken_for_the_usual_one_until_more_are_known() -> None:
    job = Job()
    job.trains(2, step_s=60.0)
    job.pass_by(85.0)
    assert job.suspicions == []


def test_who_has_left_its_loop_is_not_watched() -> None:
    job = Job()
    job.trains(100)
    job.phase = dict.fromkeys(job.phase, "finished")
    job.pass_by(1000.0)
    assert job.suspicions == []


def test_until_its_script_has_ended_and_its_process_does_not() -> None:
    job = Job()
    job.trains(100)
    job.phase = dict.fromkeys(job.phase, "finished")
    job.finished = True
    job.pass_by(1000.0)
    job.phase = dict.fromkeys(job.phase, "ending")
    job.pass_by(60.0)
    assert job.suspicions and job.suspicions[0].ago_s < 30.0


def test_who_has_ended_and_whose_last_step_is_still_being_saved_stands_still_for_good() -> None:
    job = Job()
    job.trains(100)
    job.phase = dict.fromkeys(job.phase, "ending")
    job.finished = True
    job.phase = dict.fromkeys(job.phase, SAVES)
    job.pass_by(1000.0)
    assert job.suspicions == []


def plain(steps: int, *reached: Milestone, phase: str = "starting") -> Report:
    """A script that reports nothing; what its optimizers do is seen."""
    worker = WorkerReport(
        rank=0, pid=1, progress=Progress(), phase=phase,
        milestones=dict.fromkeys((Milestone.STARTED, *reached), 1.0),
        optimizer_steps=steps, optimizer_step_time_s=0.05,
    )  # fmt: skip
    return Report(node="n", attempt=1, workers=(worker,))


def test_of_a_script_without_the_library_the_steps_of_optimizers_are_watched() -> None:
    watch = HangWatch(TIMEOUT_S)
    watch.begin(1, 1, 0.0)
    now = 10.0
    for step in range(1, 50):
        now += 0.05
        watch.observe(plain(step, Milestone.STEPPED), now)
        assert not watch.is_due(now)
    assert not watch.is_due(now + FLOOR_S - 0.1) and watch.is_due(now + FLOOR_S + 0.1)
    told = watch.suspect(now + FLOOR_S + 0.1)
    assert not told.reported and told.step is None and told.trained
    assert told.counted == 49, "in this attempt: by that a hang is known to come again"


def prints(step: int, optimizer_steps: int = 0) -> Report:
    """A script whose output tells steps, perhaps one in which optimizers are seen, too."""
    worker = WorkerReport(
        rank=0, pid=1, progress=Progress(), phase="starting", printed_step=step,
        milestones=dict.fromkeys((Milestone.STARTED, Milestone.STEPPED), 1.0),
        optimizer_steps=optimizer_steps, optimizer_step_time_s=0.05 if optimizer_steps else None,
    )  # fmt: skip
    return Report(node="n", attempt=1, workers=(worker,))


def test_of_a_script_that_prints_its_steps_these_are_watched() -> None:
    """It prints each hundredth, every 5 s: between two of them nothing is known."""
    watch, now = HangWatch(TIMEOUT_S), 0.0
    watch.begin(1, 1, now)
    for step in range(500, 20_000, 100):
        for _ in range(25):
            now += LOOK_S
            watch.observe(prints(step), now)
            assert not watch.is_due(now)
    stands_s = PAUSES * 5.0
    assert not watch.is_due(now + stands_s - 5.0) and watch.is_due(now + stands_s)
    assert watch.suspect(now + stands_s).counted == 19_900


def steps_plainly(step_timeout_s: float, steps: int = 49) -> tuple[HangWatch, float]:
    """An attempt of a script without the library, and when it did its last step."""
    watch, now = HangWatch(TIMEOUT_S, step_timeout_s), 10.0
    watch.begin(1, 1, 0.0)
    for step in range(1, steps + 1):
        now += 0.05
        watch.observe(plain(step, Milestone.STEPPED, phase="step"), now)
    return watch, now


def test_what_the_job_file_says_of_a_step_holds_for_a_script_without_the_library_too() -> None:
    watch, now = steps_plainly(5.0)
    assert watch.is_due(now + 4.9) and not watch.suspect(now + 4.9).overdue
    assert not watch.is_due(now + 4.95) and watch.is_due(now + 5.01)
    told = watch.suspect(now + 5.01)
    assert told.overdue and not told.reported and told.counted == 49
    watch, now = steps_plainly(0.0)
    assert not watch.suspect(now + 1000.0).overdue, "nothing was said of a step"


def test_but_not_for_its_first_steps_nor_where_it_is_not_known_to_step_any_more() -> None:
    watch, now = steps_plainly(5.0, steps=4)
    assert not watch.suspect(now + 50.0).overdue
    for after in (plain(0, Milestone.STEPPED), plain(49, Milestone.STEPPED, phase="ending")):
        watch, now = steps_plainly(5.0)
        watch.observe(after, now + 0.1)  # a CUDA graph replays it; its script is over
        told = watch.suspect(now + 50.0)
        assert not told.overdue
        assert told.counted is None or told.counted == 49


def test_who_prints_each_hundredth_step_is_given_what_it_takes_from_one_to_the_next() -> None:
    watch, now = HangWatch(TIMEOUT_S, 5.0), 0.0
    watch.begin(1, 1, now)
    for step in [*range(500, 2000, 100), *range(0, 1000, 100)]:  # another epoch
        for _ in range(35):  # 7 s
            now += LOOK_S
            watch.observe(prints(step), now)
            assert not watch.is_due(now) or not watch.suspect(now).overdue
    now -= 7.0 - LOOK_S  # of the newest
    late = now + PAUSES * 7.0
    assert not watch.suspect(late - 0.1).overdue
    told = watch.suspect(late + 0.1)
    assert told.overdue and told.counted == 900, "that it printed last"


def test_where_a_script_goes_on_from_is_not_taken_for_steps_of_its_optimizers() -> None:
    watch, now = HangWatch(TIMEOUT_S), 1.0
    watch.begin(1, 1, 0.0)
    watch.observe(prints(12_000), now)
    now += BEGIN_S - 5.0  # it compiles
    assert not watch.is_due(now)
    for step in range(1, 50):
        now += 0.05
        watch.observe(prints(12_000, step), now)
        assert not watch.is_due(now)
    assert watch.is_due(now + FLOOR_S + 0.1)


def test_a_long_section_leaves_one_of_another_name_no_more_time() -> None:
    job = Job()
    job.trains(100)
    for name, seconds in (("export", 300.0), ("eval", 20.0), ("export", 300.0)):
        job.section, job.phase = name, dict.fromkeys(job.phase, "section")
        job.suspicions.clear()
        job.pass_by(seconds)
    assert job.suspicions == []  # the second time that is known
    job.section = "eval"
    job.pass_by(SECTION_FLOOR_S + 1.0)
    assert job.suspicions[0].ago_s == pytest.approx(SECTION_FLOOR_S, abs=1.0)


def test_a_script_of_which_no_steps_are_seen_is_not_watched() -> None:
    watch = HangWatch(TIMEOUT_S)
    watch.begin(1, 1, 0.0)
    watch.observe(plain(0), 1.0)
    assert not watch.is_due(10_000.0)


def test_reports_of_other_attempts_and_ranks_that_do_not_exist_are_ignored() -> None:
    job = Job(ranks=1)
    job.trains(10)
    for attempt, rank in ((2, 0), (1, 7), (1, -1)):
        strange = WorkerReport(
            rank=rank, pid=1, progress=Progress(step=99), milestones=dict.fromkeys(TRAINED, 1.0)
        )
        job.watch.observe(Report(node="n", attempt=attempt, workers=(strange,)), job.now)
    job.pass_by(FLOOR_S + 1.0)
    assert job.suspicions[0].step == 10


def test_a_controller_that_did_not_listen_blames_nobody_for_that() -> None:
    job = Job()
    job.trains(100)
    job.now += 60.0
    job.watch.forgive(job.now)
    assert not job.watch.is_due(job.now + 1.0)
    job.pass_by(FLOOR_S + 1.0)
    assert len(job.suspicions) == 1


def test_whoever_moves_again_is_watched_as_before() -> None:
    """What was suspected for minutes is looked at ever more rarely, and only that."""
    job = Job()
    job.trains(100)
    job.pass_by(300.0)
    for rank in job.steps:
        job.steps[rank] += 1000
        job.ended_at[rank] = job.now - 0.1
    job.tell()
    known = len(job.suspicions)
    job.pass_by(FLOOR_S + 1.0)
    assert len(job.suspicions) == known + 1 and job.suspicions[-1].ago_s < FLOOR_S + 1.0


def test_reports_that_are_read_rarely_teach_the_same() -> None:
    """A thousand steps between two looks: no pause is taken for a long one."""
    job = Job()
    job.trains(10)
    for _ in range(5):
        job.now += 50.0
        for rank in job.steps:
            job.steps[rank] += 1000
            job.ended_at[rank] = job.now
        job.tell()
    job.pass_by(FLOOR_S + 1.0)
    assert job.suspicions and job.suspicions[0].budget_s == FLOOR_S

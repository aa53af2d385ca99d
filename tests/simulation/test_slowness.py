"""Ranks that are slow, bits that flip and networks that stall, and who may be blamed for them."""

import pytest

from holdfast.actions import Fence, StopAttempt
from holdfast.collectives import RankTimes
from holdfast.detection.samples import Sample
from holdfast.detection.straggler import StragglerWatch
from holdfast.events import (
    AttemptStopped,
    HangJudged,
    Judgement,
    Ranks,
    ReplicasDiffer,
    StragglersFound,
    in_rows,
)
from holdfast.simulation.blame import FairBlame
from holdfast.simulation.environment import Foul
from holdfast.simulation.flips import FLIPPED, SOUND, Flips
from holdfast.simulation.observed_workers import entry_times
from holdfast.simulation.runs import NodeWorkers
from holdfast.simulation.slowness import Slow, meetings, told_of, wall_clock_us
from holdfast.simulation.tempo import Tempo
from holdfast.simulation.world import World
from holdfast.slow_ranks import SlowBy, Straggler
from tests.simulation.test_referees import entry
from tests.simulation.test_world import lived, quiet


def named(world_size: int, slow: dict[int, Slow], *, recent: int = 32) -> tuple[int, ...]:
    """Whom the detector calls slow after some samples of a training with steps of a second."""
    watch = StragglerWatch(1)
    found: tuple[int, ...] = ()
    tempo = Tempo(1, 0.0, max((one.times for one in slow.values()), default=1.0))
    for now in range(2, 82, 2):
        joins = meetings(tempo, 1, 0, now, 1.0, recent)
        times = [
            RankTimes(
                rank=rank, groups=(told_of(rank, world_size, slow.get(rank), rank % 50, joins),)
            )
            for rank in range(world_size)
        ]
        ahead = {r: (wall_clock_us(r % 50, 0.0), 100.0) for r in range(world_size)}
        told = watch.observe(Sample(now, times, ahead, {}))
        found = tuple(one.rank for one in told.stragglers) if told is not None else found
    return found


@pytest.mark.parametrize("world_size", [2, 5, 1000])
def test_the_detector_of_production_names_who_is_slow_by_the_times_that_are_told(
    world_size: int,
) -> None:
    slow = Slow(1.3, None, starved=False, since=0.0)
    assert named(world_size, {1: slow}, recent=32 if world_size < 1000 else 8) == (1,)


def test_nobody_is_slow_who_is_as_slow_as_all() -> None:
    assert named(6, {}) == ()
    slow = Slow(2.0, None, starved=False, since=0.0)
    assert named(4, dict.fromkeys(range(4), slow)) == ()


def test_what_is_entered_is_told_once_and_in_order() -> None:
    tempo = Tempo(4, 100.0, 2.0)
    first = meetings(tempo, 4, 0, 109.0, 2.0, 32)
    assert [one.sequence for one in first] == [*range(1, 17)]
    assert [one.sequence for one in meetings(tempo, 4, 15, 111.0, 2.0, 32)] == [*range(16, 21)]
    assert [one.sequence for one in meetings(tempo, 4, 0, 111.0, 2.0, 3)] == [18, 19, 20]
    assert meetings(tempo, 4, 0, 101.0, 2.0, 32) == []


def test_what_one_node_has_told_before_another_had_it_is_told_again() -> None:
    """Seed 5509 of 6 hours and 6 nodes: two nodes were asked just before a step was over, and its
    collectives were lost: of no moment had all told."""
    world = World(quiet(step_s=4.0, total_steps=5000))
    world.lives.begin()
    world.env.run(200.0)
    runs = [run for group in world.truth.training() for run in group.runs.values()]
    assert len(runs) > 1

    def told(run: NodeWorkers, now: float) -> set[int]:
        times = entry_times(run, 1, now, 4.0, 32)
        return {one.sequence for rank in times for one in rank.groups[0].recent}

    tempo = runs[0].group.tempo
    assert tempo is not None
    over = tempo.end_of(tempo.step_at(world.env.now) + 1)
    for run in runs:
        told(run, over - 1.0)
    early, late = told(runs[0], over - 0.1), told(runs[1], over + 0.1)
    assert late - early, "of the step that is over"
    assert late - early <= told(runs[0], over + 1.0) & told(runs[1], over + 1.0)


def test_a_flip_is_seen_at_the_next_look_and_known_a_step_later() -> None:
    flips = Flips(every=20, snapshot_every=7)
    flip = flips.strike(1, 2, step=31, inherited=5, count=4)
    assert (flip.agreed, flip.seen, flip.known) == (26, 33, 34), "looks: 20, 26, 33, 40"
    digests = [flip.digest(rank, 1.0).digest for rank in range(4)]
    assert digests == [SOUND, SOUND, FLIPPED, SOUND]
    assert (flips.last_snapshot(1, 30), flips.last_snapshot(1, 33)) == (30, 26)
    flips.forget(1)
    assert flips.of(1) is None and flips.last_snapshot(1, 33) == 33
    assert flips.strike(1, 0, step=6, inherited=5, count=4).agreed == 5, "what it began with"


# ── the referee ──


def stragglers(*ranks: int) -> StragglersFound:
    found = [Straggler(rank=rank, share=0.5, cause=SlowBy.ITSELF, text="") for rank in ranks]
    return StragglersFound(attempt=1, stragglers=tuple(found))


def differing(ranks: Ranks) -> ReplicasDiffer:
    return ReplicasDiffer(attempt=1, step=9, agreed=8, compared=4, alike=(), ranks=ranks)


def hanging(*ranks: int) -> HangJudged:
    return HangJudged(
        attempt=1, judgement=Judgement.HANG, summary="", confidence=1.0, ago_s=3.0,
        ranks=in_rows(ranks),
    )  # fmt: skip


STOP = StopAttempt(attempt=1, grace_s=0.0, reason="")
SLOW = Slow(2.0, 1, starved=False, since=0.0)


def test_only_a_slow_rank_is_called_slow_and_only_its_node_is_replaced_for_that() -> None:
    blame = FairBlame()
    blame.sets_out(1, "n0", range(2), None)
    blame.sets_out(1, "n1", range(2, 4), SLOW)
    assert not blame.journaled(entry(stragglers(3), STOP))
    assert "rank 2 of attempt 1 is called slow" in blame.journaled(entry(stragglers(2, 3)))
    stopped = AttemptStopped(attempt=1, store=None)
    assert not blame.journaled(entry(stopped, Fence(node="n1", reason="", blamed=True)))
    assert blame.may_be_replaced("n1", 1) and not blame.may_be_replaced("n0", 1)
    wrong = blame.journaled(entry(stopped, Fence(node="n0", reason="", blamed=True)))
    assert "n0 is replaced for being slow" in wrong


def test_of_very_many_verdicts_a_few_may_be_wrong_where_detection_is_a_test_of_chance() -> None:
    blame = FairBlame()
    blame.judged = 1_000_000
    assert not any(blame.journaled(entry(stragglers(0))) for _ in range(5))
    assert blame.journaled(entry(stragglers(0)))


def test_only_whose_bits_have_flipped_is_blamed_for_that_and_it_counts_against_its_node() -> None:
    blame = FairBlame()
    blame.flipped(1, "n1", 2)
    assert not blame.journaled(entry(differing(())))
    assert not blame.corruptions("n1")
    assert not blame.journaled(entry(differing(((2, 2),))))
    assert blame.corruptions("n1") == {(1, 2)}
    assert "rank 2 differs" in blame.journaled(entry(differing(((2, 3),))))


def test_a_hang_is_blamed_on_the_rank_that_hangs_or_on_nobody() -> None:
    blame = FairBlame()
    blame.hung(1, 3)
    assert not blame.journaled(entry(hanging(3)))
    assert not blame.journaled(entry(hanging()))
    for wrong in (hanging(2), hanging(2, 3)):
        assert "blamed for a hang of rank 3" in blame.journaled(entry(wrong))


def test_nobody_is_blamed_for_a_network_that_stalls() -> None:
    blame = FairBlame()
    blame.stalled(1)
    assert not blame.journaled(entry(hanging()))
    assert blame.may_be_stopped(1, hanging()) and not blame.may_be_stopped(2, hanging())
    assert "network that stalls" in blame.journaled(entry(hanging(0)))
    blame.hung(1, 0)
    assert not blame.journaled(entry(hanging(0))), "one hangs as well"


# ── whole worlds ──


@pytest.mark.parametrize("kind", ["stragglers", "bit_flips"])
def test_what_is_slow_or_wrong_is_seen_and_dealt_with(kind: str) -> None:
    world = lived(
        quiet(rates={kind: 24.0}, total_steps=0, hours=8.0, workers=2, step_s=8.0, delay_s=0.001)
    )
    event = b"StragglersFound" if kind == "stragglers" else b"ReplicasDiffer"
    assert bytes(world.book.lines).count(b'"type":"%s"' % event) > 2
    assert world.referees.attempts > 2
    assert b'"blamed":true' in world.book.lines, "a node was replaced for it"


def test_what_is_unseen_for_longer_than_its_bound_is_a_foul() -> None:
    referees = lived(quiet()).referees
    referees.unseen("a straggler", 10.0, 10.0)
    with pytest.raises(
        Foul, match=r"every fault is detected at .*: a straggler is not seen for 11"
    ):
        referees.unseen("a straggler", 11.0, 10.0)

"""A world is its seed: the same journal, byte for byte, and one that production reads."""

import hashlib
import json
import os
import subprocess
import sys
from itertools import islice
from pathlib import Path

import msgspec
import pytest

from holdfast import journal
from holdfast.actions import EndJob, Entry, StartAttempt
from holdfast.controller import Phase
from holdfast.goodput import ledger
from holdfast.profiles import ProfileReply, ProfileRequest
from holdfast.replay import replay
from holdfast.simulation.environment import AT_ONCE_MAX, Environment, Foul
from holdfast.simulation.hardship import CLUSTER, RATES, SHARES, Hardship, draw
from holdfast.simulation.swarm import run
from holdfast.simulation.world import World
from tests.more import MORE, examples, sample

SEEDS = range(40)
HASHED = 12 if MORE else 4
DIGESTS = """
import hashlib, sys
from holdfast.simulation.swarm import run
for seed in range(int(sys.argv[1])):
    told, lines = run(seed, hours=8.0, nodes=8)
    print(seed, told.happened, told.outcome, len(lines), hashlib.sha256(lines).hexdigest())
"""


def digests(hash_seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    return subprocess.run(
        [sys.executable, "-c", DIGESTS, str(HASHED)], env=environment, capture_output=True,
        text=True, check=True,
    ).stdout  # fmt: skip


def test_the_same_seed_gives_the_same_journal_however_python_hashes() -> None:
    other = digests("0" if os.environ.get("PYTHONHASHSEED") != "0" else "4242")
    here = [run(seed, hours=8.0, nodes=8)[1] for seed in range(HASHED)]
    assert [line.split()[-1] for line in other.splitlines()] == [
        hashlib.sha256(lines).hexdigest() for lines in here
    ]
    assert len(set(here)) == len(here)


def test_every_kind_of_hardship_is_on_in_some_worlds_and_off_in_others() -> None:
    worlds = [draw(seed) for seed in range(400)]
    for kind in RATES:
        assert 20 < sum(kind in world.rates for world in worlds) < 360, kind
    for kind in SHARES:
        assert 30 < sum(kind in world.shares for world in worlds) < 360, kind
    assert 100 < sum(world.cluster for world in worlds) < 170
    assert 30 < sum(world.limits.elastic for world in worlds) < 360


def test_some_jobs_shrink_and_grow_and_no_referee_objects() -> None:
    elastic = (seed for seed in range(10_000) if draw(seed, hours=8.0, nodes=8).limits.elastic)
    grown = smaller = 0
    for seed in islice(elastic, examples(16)):
        told, lines = run(seed, hours=8.0, nodes=8)
        assert not told.foul, told.command
        count = draw(seed, hours=8.0, nodes=8).limits.node_count
        grown += lines.count(b'"keeps":"here"')
        smaller += any(s.node_count < count for s in _starts(lines))
    assert grown and smaller


@pytest.mark.parametrize("fewest", [0, 1])
def test_nodes_that_take_long_to_be_warm_are_taken_if_need_be_and_no_referee_objects(
    fewest: int,
) -> None:
    hard = quiet(rates={"node_deaths": 300.0, "worker_kills": 100.0}, total_steps=0, seed=3)
    limits = msgspec.structs.replace(hard.limits, max_restarts=100_000, min_nodes=fewest)
    world = lived(msgspec.structs.replace(hard, limits=limits, cold_nodes=0.7))
    assert b'"warm":false' in world.book.lines
    assert b"its workers were not ready yet" in world.book.lines


def _starts(lines: bytes) -> list[StartAttempt]:
    entries = [json.loads(line) for line in lines.splitlines()[1:]]
    found = [a for entry in entries for a in entry["actions"] if a["type"] == "StartAttempt"]
    return [msgspec.convert(action, StartAttempt) for action in found]


@pytest.mark.parametrize("nodes", [1, 2, 3, 16])
def test_a_world_is_no_larger_than_it_may_be(nodes: int) -> None:
    for seed in SEEDS:
        limits = draw(seed, nodes=nodes).limits
        assert 1 <= limits.node_count <= nodes
        assert limits.node_count + limits.spare_count <= max(2, nodes)


@pytest.fixture(scope="module", params=sample([3, 23], [5, 17]))
def world(request: pytest.FixtureRequest) -> World:
    """A world that is over."""
    lived = World(draw(request.param, hours=8.0, nodes=8))
    lived.run()
    return lived


def test_the_journal_of_a_world_is_one_that_production_replays(
    world: World, tmp_path: Path
) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(world.book.lines)
    limits = world.hardship.limits
    controller, book = replay(path, limits)
    book.close()
    assert book.seq == world.referees.entries
    assert controller.state == world.book.whole().state
    assert controller.state.outcome is world.referees.outcome
    for entry, again in zip(journal.entries(path), journal.entries(path), strict=True):
        assert entry == again


def test_the_ledger_of_a_world_can_be_drawn_up_from_its_journal(world: World) -> None:
    lines = bytes(world.book.lines).splitlines()[1:]
    entries = [msgspec.json.decode(line, type=Entry) for line in lines]
    ends = [e.at for e in entries if any(isinstance(a, EndJob) for a in e.actions)]
    first, last = entries[0].at, min([*ends, entries[-1].at])  # what is heard later costs nothing
    books = ledger(first, entries, last)
    assert sum(books.seconds().values()) == pytest.approx(last - first, abs=0.01)


def quiet(**changes: object) -> Hardship:
    """A world of two nodes and a spare in which nothing goes wrong unless asked for."""
    hard, rates = draw(0, hours=2.0, nodes=3), changes.get("rates", {})
    looked_for = "replace" if isinstance(rates, dict) and "stragglers" in rates else "off"
    limits = msgspec.structs.replace(
        hard.limits,
        node_count=2,
        spare_count=1,
        max_restarts=20,
        exact=False,
        hang_timeout_s=600.0,
        stragglers=looked_for,
    )
    calm = msgspec.structs.replace(
        hard,
        limits=limits,
        workers=1,
        step_s=1.0,
        snapshot_every=1,
        instrumented=True,
        total_steps=1000,
        user_error_step=0,
        quiet_error=False,
        early_end_step=0,
        stop_after_h=0.0,
        clock_step_s=0.0,
        rates={},
        shares={},
        check_every=20,
        cluster=False,
    )
    return msgspec.structs.replace(calm, **changes)


def lived(hard: Hardship) -> World:
    world = World(hard)
    world.run()
    assert world.control is not None
    return world


def test_where_nothing_goes_wrong_the_job_succeeds_at_its_first_attempt() -> None:
    world = lived(quiet())
    assert (world.referees.outcome, world.referees.attempts) == ("succeeded", 1)
    assert 1000.0 < world.env.now < 2000.0


def test_nobody_answers_over_a_connection_to_a_machine_that_is_gone_even_in_calm() -> None:
    world = World(quiet(cluster=True, hours=1.0, total_steps=5000))

    def lose_its_machine() -> None:
        assert world.control is not None
        world.control.crash(torn=True)

    world.env.after(3600.0 - 1.0, lose_its_machine)
    world.run()
    assert world.referees.attempts == 1


@pytest.mark.parametrize("seed", range(2))
def test_a_job_that_is_profiled_again_and_again_loses_nobody_for_it(seed: int) -> None:
    """Ranks that are profiled are slower than the others for a while."""
    hard = quiet(seed=seed, total_steps=3000, delay_s=0.001)
    limits = msgspec.structs.replace(hard.limits, stragglers="replace")
    world = World(msgspec.structs.replace(hard, limits=limits))
    replies: list[ProfileReply] = []

    def ask() -> None:
        control = world.control
        if control is None or control.state.ended:
            return
        wish = ProfileRequest(id=f"p{world.env.now:.0f}", steps=50, ranks=(len(replies) % 2,))
        there = control.shell.nodes.connected
        control.hear(lambda: control.shell.profiles.ask(wish, there, control.clock, replies.append))
        world.env.after(150.0, ask)

    def look() -> None:
        """As often as in a real job: whether somebody is slow."""
        if world.control is not None and not world.control.state.ended:
            world.control.look_in(0.0)
            world.env.after(5.0, look)

    world.env.after(100.0, ask)
    world.env.after(100.0, look)
    world.run()
    taken = [reply for reply in replies if reply.ranks and not reply.ranks[0].why]
    assert len(taken) >= 5 and world.referees.attempts == 1
    assert b"StragglersFound" not in bytes(world.book.lines)
    assert world.referees.blame.judged > 100, "somebody looked whether anybody is slow"


def test_a_bug_of_the_users_code_fails_the_job_after_one_more_try() -> None:
    world = lived(quiet(user_error_step=500, snapshot_every=3, seed=1))
    assert (world.referees.outcome, world.referees.attempts) == ("failed", 2)


@pytest.mark.parametrize("seed", range(3))
def test_storage_that_is_away_for_minutes_does_not_end_a_sound_job(seed: int) -> None:
    """Every rank fails at the same step, again and again; with a number that was asked for, that
    may be the end."""
    outages = {"storage_outages": 200.0}
    hard = quiet(rates=outages, total_steps=3000, seed=seed)
    world = lived(hard)
    assert world.referees.outcome == "succeeded"
    assert world.control is not None
    causes = [incident.cause for incident in world.control.state.incidents]
    assert causes.count("environment") == len(causes) > 4, causes
    exact = msgspec.structs.replace(hard.limits, max_restarts=2, exact=True)
    ended = lived(msgspec.structs.replace(hard, limits=exact))
    assert ended.referees.outcome in ("gave_up", "succeeded")


def test_a_script_that_leaves_its_loop_early_on_all_ranks_has_succeeded() -> None:
    world = lived(quiet(early_end_step=300))
    assert (world.referees.outcome, world.referees.attempts) == ("succeeded", 1)
    assert world.control is not None
    assert world.control.state.max_step == 300
    assert world.control.state.incidents == []


def test_a_rank_that_exits_with_status_0_fails_the_job_after_one_more_try() -> None:
    """The others wait for it, and nobody fails by himself."""
    world = lived(quiet(user_error_step=500, quiet_error=True, snapshot_every=3, seed=1))
    assert (world.referees.outcome, world.referees.attempts) == ("failed", 2)
    assert world.control is not None
    incidents = world.control.state.incidents
    assert [(i.cause, i.rank) for i in incidents] == [("exited-early", 0)] * 2
    assert "exited with status 0 after step" in world.control.state.why


def test_a_request_to_stop_is_obeyed() -> None:
    world = lived(quiet(stop_after_h=0.1))
    assert world.referees.outcome == "stopped"
    assert world.control is not None
    assert world.control.state.phase is Phase.STOPPED


@pytest.mark.parametrize("kind", sorted(RATES))
def test_each_kind_of_fault_alone_is_survived(kind: str) -> None:
    """At the highest rate that is ever drawn."""
    world = lived(quiet(rates={kind: RATES[kind][1]}, total_steps=0, cluster=kind in CLUSTER))
    assert world.referees.outcome in ("stopped", "gave_up")


@pytest.mark.parametrize("kind", sorted(SHARES))
def test_each_kind_of_mishap_alone_is_survived(kind: str) -> None:
    """With the highest probability that is ever drawn, among faults that give occasion to it."""
    kinds = ("worker_kills", "node_deaths", "controller_crashes", "duty_deaths")
    rates = {one: RATES[one][1] for one in kinds}
    world = lived(quiet(rates=rates, shares={kind: SHARES[kind][1]}, total_steps=0))
    assert world.referees.outcome in ("stopped", "gave_up")


def test_a_world_in_which_time_stands_still_is_a_foul() -> None:
    env = Environment(quiet())

    def again() -> None:
        env.after(0.0, again)

    again()
    with pytest.raises(Foul, match=f"time advances at 0.000 s: {AT_ONCE_MAX} events"):
        env.run(1.0)


def test_things_at_the_same_time_happen_in_the_order_in_which_they_were_planned() -> None:
    env = Environment(quiet())
    seen: list[int] = []
    for number in range(20):
        env.after(1.0, seen.append, number)
    env.after(0.5, seen.append, -1)
    env.run(2.0)
    assert seen == [-1, *range(20)]
    assert env.now == 2.0


def test_nothing_goes_wrong_by_chance_once_it_is_calm() -> None:
    env = Environment(quiet())
    env.calm = True
    assert not any(env.chance(1.0) for _ in range(100))

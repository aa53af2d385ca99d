"""Training goes on after a fault as if it had not happened: every loss and parameter, bit by bit.

Real processes, real SIGKILLs. The rest of the attempt is killed too, as the controller does, so
what counts is what the arenas hold.
"""

import os
import random

import pytest

from holdfast.checkpoint.arena import Arena, StatePart
from holdfast.events import Milestone
from tests.more import MORE, long, sample
from tests.train.cluster import Attempt, Cluster
from tests.train.conftest import Make, Undisturbed

LAST = 7  # index of the last step
SHAPES = [(1, 1), (1, 2), (2, 1), (3, 1), (2, 2)]


def completed(attempt: Attempt) -> int:
    """The furthest step of any rank when the attempt ended."""
    return max(page.progress(0.0).step or 0 for page in attempt.pages)


def restored_steps(cluster: Cluster, first: int = 1) -> list[int]:
    """The step each attempt from the `first` on continued from, of those that came so far."""

    def came_so_far(attempt: Attempt) -> bool:
        return all(Milestone.RESTORED in p.report(0, 1, 0.0).milestones for p in attempt.pages)

    return [a.restored[0] for a in cluster.attempts[first - 1 :] if came_so_far(a)]


def damage(cluster: Cluster, rank: int, part: StatePart) -> None:
    """Flip a byte in both cells of this part."""
    for cell in Arena(cluster.arenas[rank]).cells(part):
        header = cell.header()
        if header is not None:
            cell.reserve(header.payload_bytes, touch=False)
            cell.payload[header.payload_bytes // 3] ^= 16


PLACES = ["before_join", "step:0", "snapshot:1", "after_backward:3"]
FURTHER = ["joined", "after_backward:0", "snapshot:2", "step:1", "snapshot:5", f"step:{LAST}",
           "snapshot:6", "after_loop",
           f"after_backward:{LAST}", "snapshot:15", "snapshot:16"]  # fmt: skip


@pytest.mark.parametrize(
    ("nodes", "local", "place"),
    sample(
        [(1, 2, place) for place in PLACES],
        [(1, 1, place) for place in PLACES + FURTHER] + [(1, 2, place) for place in FURTHER],
    ),
)
def test_killed_anywhere_it_goes_on_in_place(
    make: Make, undisturbed: Undisturbed, nodes: int, local: int, place: str
) -> None:
    cluster = make(nodes, local)
    first = cluster.run(f"{nodes * local - 1}:1:{place}")
    assert first.exit_codes[-1] == -9, cluster.story()
    second = cluster.finish()
    assert cluster.outcome() == undisturbed(nodes, local)
    assert completed(first) - second.restored[0] <= 1
    assert len(set(second.restored)) == 1


LOST_AT = ["step:1", "step:4", "after_backward:4", "snapshot:9", "step:7"]
LOST = [(2, 1, "snapshot:9"), (2, 1, "step:7"), (2, 2, "after_backward:4")]


@pytest.mark.parametrize(
    ("nodes", "local", "place"),
    sample(LOST, {(*shape, at) for shape in SHAPES[2:] for at in LOST_AT} - set(LOST)),
)
def test_a_lost_node_costs_at_most_two_steps(
    make: Make, undisturbed: Undisturbed, nodes: int, local: int, place: str
) -> None:
    """The one it died in, and one more if the copies for its buddies were still on their way."""
    cluster = make(nodes, local)
    first = cluster.run(f"0:1:{place}")
    cluster.lose(*range(local))
    second = cluster.finish()
    assert cluster.outcome() == undisturbed(nodes, local), cluster.story()
    assert completed(first) - second.restored[0] <= 2


@long
def test_every_node_may_be_lost_one_after_the_other(make: Make, undisturbed: Undisturbed) -> None:
    """After each restore the copies of the lost node are made anew before anything else is lost."""
    cluster = make(3, 1)
    for attempt, rank in enumerate([0, 1, 2, 1], start=1):
        cluster.run(f"{rank}:{attempt}:after_backward:{attempt + 1}")
        cluster.lose(rank)
    cluster.finish()
    assert cluster.outcome() == undisturbed(3, 1)
    assert all(attempt.restored[0] > 0 for attempt in cluster.attempts[1:])


def test_two_neighbours_lost_at_once_start_over_and_say_so(
    make: Make, undisturbed: Undisturbed
) -> None:
    """The private state of one of them is nowhere any more."""
    cluster = make(3, 1)
    cluster.run("0:1:step:4")
    cluster.lose(1, 2)
    second = cluster.finish()
    assert second.restored == [0, 0, 0]
    assert "starting from step 0" in cluster.story()
    assert cluster.outcome() == undisturbed(3, 1)


@pytest.mark.parametrize("seed", sample([0], [1, 2]))
def test_random_kills_in_a_row_change_nothing(make: Make, seed: int) -> None:
    rng, (nodes, local) = random.Random(seed), SHAPES[2 + seed]
    quiet, cluster = make(nodes, local, STEPS="24"), make(nodes, local, STEPS="24")
    quiet.finish()
    for number in range(1, 11 if MORE else 7):
        rank = rng.randrange(cluster.world)
        step = cluster.redo_until + rng.randrange(3)
        places = ["joined", f"step:{step}", f"after_backward:{step}", f"snapshot:{1 + step % 5}"]
        cluster.run(f"{rank}:{number}:{rng.choice(places)}")
        if restored_steps(cluster, number) and rng.random() < 0.4:
            cluster.lose(*range(rank // local * local, (rank // local + 1) * local))
    cluster.finish()
    assert cluster.outcome() == quiet.outcome()
    steps = restored_steps(cluster)
    assert steps == sorted(steps), "no attempt goes on from an older step than the one before"
    assert len(set(steps)) > 2


@pytest.mark.parametrize("part", [StatePart.SHARED, StatePart.PRIVATE])
def test_a_damaged_part_is_fetched_from_who_has_it_whole(
    make: Make, undisturbed: Undisturbed, part: StatePart
) -> None:
    cluster = make(2, 1)
    first = cluster.run("1:1:step:5")
    damage(cluster, 0, part)
    second = cluster.finish()
    assert "damaged" in cluster.story()
    assert cluster.outcome() == undisturbed(2, 1)
    assert completed(first) - second.restored[0] <= 1


def test_one_damaged_snapshot_costs_a_step_and_not_the_job(
    make: Make, undisturbed: Undisturbed
) -> None:
    cluster = make()
    cluster.run("0:1:step:5")
    cells = Arena(cluster.arenas[0]).cells(StatePart.SHARED)
    newest = max(cells, key=lambda cell: h.step if (h := cell.header()) else 0)
    newest.reserve(8, touch=False)
    newest.payload[3] ^= 1
    assert cluster.finish().restored == [4]
    assert cluster.outcome() == undisturbed(1, 1)


@pytest.mark.parametrize("local", sample([2], [1]))
def test_with_everything_damaged_it_starts_over(
    make: Make, undisturbed: Undisturbed, local: int
) -> None:
    cluster = make(1, local)
    cluster.run("0:1:step:5")
    for rank in range(local):
        damage(cluster, rank, StatePart.SHARED)
    assert cluster.finish().restored == [0] * local
    assert cluster.outcome() == undisturbed(1, local)


def test_snapshots_of_another_model_are_not_trained_away(make: Make) -> None:
    cluster = make()
    cluster.run("0:1:step:5")
    cluster.env["HIDDEN"] = "77"
    assert cluster.run().exit_codes != [0]
    assert "checkpoint-unusable" in cluster.story()
    assert "model.first.weight is (500, 24) float32 there and (77, 24)" in cluster.story()


def test_state_that_is_not_data_parallel_comes_back_to_the_rank_it_belongs_to(make: Make) -> None:
    plain = make(2, 1, SPLIT="private")
    plain.finish()
    assert plain.final(0) != plain.final(1)
    faulty = make(2, 1, SPLIT="private")
    faulty.run("0:1:step:5")
    faulty.lose(1)
    assert faulty.finish().restored[0] >= 4
    assert faulty.outcome() == plain.outcome()


@pytest.mark.parametrize("every", sample([3], [100]))
def test_with_snapshots_further_apart_the_steps_since_are_repeated_alike(
    make: Make, undisturbed: Undisturbed, every: int
) -> None:
    cluster = make(2, 1, HOLDFAST_SNAPSHOT_EVERY=str(every))
    cluster.run("1:1:step:6")
    second = cluster.finish()
    assert second.restored == [4 if every == 3 else 1] * 2
    assert cluster.outcome() == undisturbed(2, 1)


def test_a_private_part_that_outgrows_its_message_still_reaches_the_buddy(make: Make) -> None:
    """It follows in a second message, and the next exchange is larger."""
    quiet, faulty = make(2, 1, BALLAST="40000"), make(2, 1, BALLAST="40000")
    quiet.finish()
    faulty.run("0:1:after_backward:6")
    faulty.lose(0)
    assert faulty.finish().restored[0] >= 5, faulty.story()
    assert faulty.outcome() == quiet.outcome()


def test_a_restart_after_the_end_has_nothing_to_do(make: Make) -> None:
    cluster = make(1, 2)
    cluster.run("1:1:after_loop")
    second = cluster.finish()
    assert second.restored == [LAST + 1] * 2
    milestones = second.pages[0].report(0, 1, 0.0).milestones
    assert Milestone.FINISHED in milestones and Milestone.FIRST_STEP not in milestones


BESIDE = [(1, 1, "stream"), (2, 1, "stream"), (2, 1, "thread"), (1, 1, "real"), (2, 1, "real")]
BESIDE_AT = ["step:4", "after_backward:5", f"step:{LAST}"]


@pytest.mark.parametrize(
    ("nodes", "local", "lazy", "place"),
    sample(
        [(*how, BESIDE_AT[n % 3]) for n, how in enumerate(BESIDE) if how[0] == 2],
        [
            (*how, BESIDE_AT[n % 3 - m])
            for n, how in enumerate(BESIDE)
            for m in ((1, 2) if how[0] == 2 else (0, 1, 2))
        ],
    ),
)
def test_copies_beside_training_hold_the_state_they_are_named_after(
    make: Make, undisturbed: Undisturbed, nodes: int, local: int, lazy: str, place: str
) -> None:
    """At their slowest: what they copy is overwritten right after the guard has let it go."""
    cluster = make(nodes, local)
    cluster.env["LAZY"] = lazy
    first = cluster.run(f"{nodes * local - 1}:1:{place}")
    assert first.exit_codes[-1] == -9, cluster.story()
    second = cluster.finish()
    assert second.restored[0] >= completed(first) - 2
    assert cluster.outcome() == undisturbed(nodes, local)


def test_what_has_been_copied_beside_training_is_not_lost_with_the_step(
    make: Make, undisturbed: Undisturbed
) -> None:
    """The worker dies in its forward pass: long after the copy, long before the optimizer."""
    cluster = make(1, 1, LAZY="real")
    assert cluster.run("0:1:copied:5").exit_codes == [-9], cluster.story()
    assert cluster.finish().restored == [5]
    assert cluster.outcome() == undisturbed(1, 1)


@pytest.mark.parametrize(
    ("lazy", "how"),
    sample(
        [("thread", "moment"), ("real", "data")],
        [("stream", "plain"), ("stream", "data"), ("stream", "moment"), ("thread", "plain"),
         ("thread", "data"), ("real", "plain"), ("real", "moment")],
    ),
)  # fmt: skip
def test_what_a_script_changes_while_it_is_being_copied_is_in_no_snapshot(
    make: Make, lazy: str, how: str
) -> None:
    """Snapshots of steps 1 and 4; the change comes while the latter is being copied. Ranks learn
    of that when they meet at the end of the step, and take another one."""
    sparse = {"MEDDLE": f"{how}:4", "HOLDFAST_SNAPSHOT_EVERY": "3"}
    quiet, faulty = make(2, 1, **sparse), make(2, 1, **sparse, LAZY=lazy)
    quiet.finish()
    faulty.run("1:1:after_backward:5")
    second = faulty.finish()
    # the thread may be quicker than the script, and slower than the fault after it
    in_time = (how, lazy) == ("data", "real")
    assert second.restored in ([[1, 1], [4, 4], [5, 5]] if in_time else [[5, 5]])
    assert faulty.outcome() == quiet.outcome(), "the snapshot that counts is right"
    if not in_time:
        name = "optimizer" if how == "moment" else "model"
        assert f"the snapshot of step 4 is discarded: {name}." in faulty.story()


@pytest.mark.parametrize("how", sample(["plain"], ["data", "moment"]))
def test_a_spoiled_snapshot_is_not_whole_before_ranks_have_met_either(make: Make, how: str) -> None:
    """Both ranks know that step 4 is spoiled, and one dies before they can say so."""
    sparse = {"MEDDLE": f"{how}:4", "HOLDFAST_SNAPSHOT_EVERY": "3"}
    quiet, faulty = make(2, 1, **sparse), make(2, 1, **sparse, LAZY="thread")
    quiet.finish()
    faulty.run("1:1:stepped:4")
    assert faulty.finish().restored == [1, 1], faulty.story()
    assert faulty.outcome() == quiet.outcome()


@pytest.mark.parametrize("how", sample(["unhooked"], ["skip"]))
def test_a_step_without_the_optimizers_hook_leaves_no_copy_that_nobody_has_looked_at(
    make: Make, how: str
) -> None:
    """As with a whole step that is replayed as a graph, on a device whose copies are not seen. The
    next one waits for a step that is seen: until then there are gradients that nothing has used."""
    sparse = {"MEDDLE": f"{how}:4", "HOLDFAST_SNAPSHOT_EVERY": "3"}
    quiet, faulty = make(2, 1, **sparse), make(2, 1, **sparse, LAZY="stream")
    quiet.finish()
    faulty.run("1:1:after_backward:6")
    assert faulty.finish().restored == [6, 6], faulty.story()
    assert faulty.outcome() == quiet.outcome()
    assert "the snapshot of step 4 is discarded: no tracked optimizer took a step" in faulty.story()
    assert faulty.story().count("the snapshot of step 4 is discarded") == 2, "once on each rank"


@pytest.mark.parametrize(
    ("place", "lazy"),
    sample(
        [("step:6", "real")],
        [("after_backward:4", ""), ("snapshot:9", ""), ("after_backward:5", "thread")],
    ),
)
def test_a_sharded_model_goes_on_bit_by_bit_also_without_a_node(
    make: Make, place: str, lazy: str
) -> None:
    quiet, faulty = make(2, 1, SPLIT="sharded"), make(2, 1, SPLIT="sharded", LAZY=lazy)
    quiet.finish()
    first = faulty.run(f"0:1:{place}")
    faulty.lose(0)
    second = faulty.finish()
    assert completed(first) - second.restored[0] <= 2
    assert faulty.outcome() == quiet.outcome()


@pytest.mark.parametrize(("split", "ranks"), sample([("sharded", 3)], [("", 3), ("", 1)]))
def test_training_goes_on_with_another_number_of_nodes(make: Make, split: str, ranks: int) -> None:
    """From memory alone: of two nodes one or three are left; then a fault in the new layout."""
    old, new = make(2, 1, SPLIT=split), make(ranks, 1, SPLIT=split)
    first = old.run("1:1:after_backward:4")
    for rank in range(min(2, ranks)):
        os.close(new.arenas[rank])
        new.arenas[rank] = os.dup(old.arenas[rank])
    new.attempts += old.attempts
    second = new.run("0:2:after_backward:6")
    third = new.finish()
    restored = second.restored[0]
    assert completed(first) - restored <= 2 and set(second.restored) == {restored}
    assert third.restored[0] > restored, new.story()


@pytest.mark.parametrize(
    ("env", "restored"),
    sample(
        [
            ({"NO_SYNC": "1", "PATIENCE": "0"}, 7),
            ({"SPLIT": "sharded", "PATIENCE": "0", "LAZY": "thread"}, 7),
        ],
        [
            ({}, 6),
            ({"SPLIT": "sharded"}, 6),
            ({"SPLIT": "sharded", "NO_SYNC": "1", "PATIENCE": "0"}, 6),
        ],
    ),
)
def test_gradients_are_carried_over_a_lost_node(
    make: Make, env: dict[str, str], restored: int
) -> None:
    """Ranks wait for the turn in which the optimizer steps, the sixth; or keep what is their own,
    their sums or shards, but for what FSDP2 has not reduced."""
    quiet, faulty = make(2, 1, ACCUMULATE="3", **env), make(2, 1, ACCUMULATE="3", **env)
    quiet.finish()
    faulty.run("0:1:after_backward:7")
    faulty.lose(0)
    second = faulty.finish()
    assert second.restored[0] in (restored, 6), "its copy may not have arrived"
    assert ("no snapshot can be taken" in faulty.story()) == ("SPLIT" in env and "NO_SYNC" in env)
    assert faulty.outcome() == quiet.outcome(), faulty.story()


@pytest.mark.parametrize("split", ["", "sharded"])
def test_kept_gradients_go_to_another_number_of_ranks_if_they_are_of_all(
    make: Make, split: str
) -> None:
    env = {"SPLIT": split, "ACCUMULATE": "3", "PATIENCE": "0"}
    old, new = make(2, 1, **env), make(1, 1, **env)
    old.run("1:1:after_backward:5")
    os.close(new.arenas[0])
    new.arenas[0] = os.dup(old.arenas[0])
    if split:
        new.env["SPLIT"] = ""
    new.attempts += old.attempts
    assert new.finish().restored[0] >= 4
    assert ("are discarded: each of" in new.story()) == (not split)

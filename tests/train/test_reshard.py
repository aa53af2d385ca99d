"""State of any layout loads into any other, from memory, local disks and shared storage, bit for
bit; and what is damaged is left aside by all ranks."""

import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.more import MORE, sample, thinned
from tests.train.layouts import SHARDABLE, WORLDS, Fleet, Net

STEP = 7
SHARED, LOCAL = "HOLDFAST_CHECKPOINT_SHARED", "HOLDFAST_CHECKPOINT_LOCAL"
BELOW, FROM = "HOLDFAST_RESTORE_BELOW", "HOLDFAST_RESTORE_FROM"
Saved = Callable[[str], Fleet]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Four processes for all tests here."""
    fleet = Fleet(tmp_path_factory.mktemp("layouts"))
    yield fleet
    fleet.close()


@pytest.fixture(scope="module")
def saved(fleet: Fleet) -> Saved:
    """The truth, saved in a layout once."""

    @functools.cache
    def saved_in(layout: str) -> Fleet:
        fleet.world(WORLDS[layout], ("save", layout, STEP, layout, ["shared", "local"]))
        return fleet

    return saved_in


@pytest.fixture
def fresh(fleet: Fleet, request: pytest.FixtureRequest) -> str:
    """A name of its own for what a test saves: sharded over three ranks, steps 6 and 7."""
    name = request.node.name.replace("[", "-").replace("]", "")
    for step in (6, 7):
        fleet.world(3, ("save", "fsdp3", step, name, ["shared", "local"]))
    return str(name)


def load(
    fleet: Fleet, old: str, new: str, env: dict[str, str], arena: str = ""
) -> set[tuple[str, int]]:
    """Load with everything equal to the truth; where it came from."""
    (answers,) = fleet.world(WORLDS[new], ("load", new, env, arena, WORLDS[old]))
    assert None not in answers, f"{old} into {new}: nothing found"
    assert [wrong for wrong, _, _ in answers] == [[]] * WORLDS[new], f"{old} into {new}"
    return {(where, step) for _, where, step in answers}


def shared(fleet: Fleet, name: str) -> dict[str, str]:
    return {SHARED: str(fleet.folder / f"{name}-shared")}


def local(fleet: Fleet, name: str) -> dict[str, str]:
    return {LOCAL: str(fleet.folder / f"{name}-local") + "-{node}"}


def flip(folder: Path, step: int) -> None:
    """Flip a byte of what rank 1 wrote."""
    (data,) = folder.glob(f"step-{step:012}*/rank-00001.data")
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)


def some(old: str) -> list[str]:
    """Each is loaded once, into a layout of another kind."""
    return SHARDABLE if MORE else [(SHARDABLE * 2)[SHARDABLE.index(old) + 5]]


@pytest.mark.parametrize("old", thinned(SHARDABLE, 3))
def test_a_layout_loads_into_others_from_shared_storage(saved: Saved, old: str) -> None:
    fleet = saved(old)
    for new in some(old):
        assert load(fleet, old, new, shared(fleet, old)) == {("SHARED", STEP)}


@pytest.mark.parametrize("layout", thinned(WORLDS, 2))
def test_the_same_layout_is_loaded_from_memory_as_it_lies(saved: Saved, layout: str) -> None:
    assert load(saved(layout), layout, layout, {}, layout) == {("ARENAS", STEP)}


@pytest.mark.parametrize(("attempt", "looked"), [(STEP + 1, False), (STEP + 2, True)])
def test_no_tier_is_looked_at_for_what_the_attempt_before_left_in_memory(
    saved: Saved, attempt: int, looked: bool
) -> None:
    """Older memory may have been left behind by an attempt in between."""
    step = ("load", "fsdp3", {SHARED: "nowhere://"}, "fsdp3", 3, attempt)
    _, answers, (words, *_) = saved("fsdp3").world(3, ("words",), step, ("words",))
    assert answers == [([], "ARENAS", STEP)] * 3
    assert ("cannot read checkpoints in the shared tier" in words) == looked


@pytest.mark.parametrize(
    ("old", "new"),
    sample(
        [("ddp3", "fsdp_tp"), ("fsdp4", "fsdp3"), ("fsdp2", "pp_fsdp")],
        [
            ("hsdp", "ddp3"),
            ("tp2", "fsdp4"),
            ("single", "fsdp3"),
            ("ddp2", "single"),
            ("pp2", "single"),
            ("fsdp3", "hsdp"),
        ],
    ),
)
def test_memory_of_another_layout_is_enough(saved: Saved, old: str, new: str) -> None:
    """The private part of a rank that is not there any more comes from its buddy."""
    assert load(saved(old), old, new, {}, old) == {("MEMORY", STEP)}


@pytest.mark.parametrize(
    ("old", "new"),
    sample(
        [("fsdp2", "fsdp3"), ("pp2", "tp2")],
        [("hsdp", "fsdp_tp"), ("tp2", "hsdp"), ("ddp2", "fsdp4")],
    ),
)
def test_disks_of_nodes_are_read_by_all(saved: Saved, old: str, new: str) -> None:
    fleet = saved(old)
    assert load(fleet, old, new, local(fleet, old)) == {("LOCAL", STEP)}


@pytest.mark.parametrize("layout", sample(["fsdp4"], ["hsdp"]))
def test_ranks_of_a_node_share_its_disk(fleet: Fleet, layout: str) -> None:
    name = f"{layout}-by-two"
    fleet.world(4, ("share", 2), ("save", layout, STEP, name, ["local"]))
    env = local(fleet, name)
    _, answers = fleet.world(4, ("share", 2), ("load", "fsdp_tp", env, "", 4))
    assert answers == [([], "LOCAL", STEP)] * 4
    assert load(fleet, layout, "fsdp3", env) == {("LOCAL", STEP)}


def test_disks_that_came_back_in_other_nodes_do_as_well(saved: Saved) -> None:
    fleet = saved("fsdp3")
    moved = {LOCAL: str(fleet.folder / "fsdp3-local") + "-{next}"}
    assert load(fleet, "fsdp3", "fsdp3", moved) == {("LOCAL", STEP)}


@pytest.mark.parametrize("layout", sample(["fsdp_tp"], ["ddp3", "hsdp"]))
def test_what_ranks_have_alike_is_written_once_and_by_all_in_turn(
    saved: Saved, layout: str
) -> None:
    """The rest is small and each rank's own: buffers, random numbers, the index."""
    (folder,) = (saved(layout).folder / f"{layout}-shared").glob("step-*")
    parts = [json.loads(path.read_text()) for path in sorted(folder.glob("rank-*.json"))]
    written = [
        sum(leaf["length"] for part in one["parts"].values() for leaf in _written(part))
        for one in parts
    ]
    elements = sum(p.numel() for p in Net().parameters())
    counters = len(list(Net().parameters()))
    assert sum(written) == 4 * (3 * elements + counters)
    assert min(written) > sum(written) / len(written) / 2


def _written(part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    return (leaf for leaf in part["leaves"] if leaf["chunks"] and not leaf["own"])


@pytest.mark.parametrize(("old", "new"), [("fsdp_tp", "fsdp3"), ("ddp2", "fsdp_tp")])
def test_dcp_reads_into_a_sharded_model_what_we_saved(saved: Saved, old: str, new: str) -> None:
    assert saved(old).world(WORLDS[new], ("load_by_dcp", new, old)) == [[[]] * WORLDS[new]]


def test_a_model_whose_parts_are_not_known_is_refused(fleet: Fleet) -> None:
    assert fleet.world(2, ("flat",)) == [["not-tracked", "not-tracked"]]


def test_a_layout_that_says_nothing_stays_as_it_is(saved: Saved) -> None:
    """From storage too, as long as the ranks are as many."""
    fleet = saved("plain2")
    assert load(fleet, "plain2", "plain2", shared(fleet, "plain2")) == {("SHARED", STEP)}


def test_a_layout_that_says_nothing_is_not_given_to_others(saved: Saved) -> None:
    """Neither from memory, where rank 0 keeps the copy of rank 1, nor from storage."""
    fleet = saved("plain2")
    for env, arena in (({}, "plain2"), (shared(fleet, "plain2"), "")):
        assert fleet.world(1, ("load", "single", env, arena, 2)) == [["layout-unknown"]]


def test_damage_in_the_newest_makes_all_ranks_use_the_one_before(fleet: Fleet, fresh: str) -> None:
    flip(fleet.folder / f"{fresh}-shared", 7)
    assert load(fleet, "fsdp3", "fsdp2", shared(fleet, fresh)) == {("SHARED", 6)}
    flip(fleet.folder / f"{fresh}-local-1", 7)
    assert load(fleet, "fsdp3", "fsdp4", local(fleet, fresh)) == {("LOCAL", 6)}


def test_damage_on_a_disk_is_made_good_from_shared_storage(fleet: Fleet, fresh: str) -> None:
    flip(fleet.folder / f"{fresh}-local-1", 7)
    env = {**shared(fleet, fresh), **local(fleet, fresh)}
    assert load(fleet, "fsdp3", "fsdp3", env) == {("SHARED", 7)}


def test_damaged_memory_is_made_good_by_a_copy_and_then_by_a_disk(fleet: Fleet, fresh: str) -> None:
    fleet.world(3, ("damage", fresh, "PRIVATE", 1))
    env = local(fleet, fresh)
    assert load(fleet, "fsdp3", "fsdp4", env, fresh) == {("MEMORY", 7)}
    fleet.world(3, ("damage", fresh, "BUDDY", 2))
    assert load(fleet, "fsdp3", "fsdp4", env, fresh) == {("LOCAL", 7)}


def test_nothing_at_or_beyond_a_poisoned_step_is_used(fleet: Fleet, fresh: str) -> None:
    env = {**shared(fleet, fresh), BELOW: "7"}
    assert load(fleet, "fsdp3", "ddp2", env) == {("SHARED", 6)}
    assert load(fleet, "fsdp3", "fsdp3", env, fresh) == {("ARENAS", 6)}


def test_memory_that_a_later_attempt_has_left_behind_is_not_used(fleet: Fleet, fresh: str) -> None:
    name = f"{fresh}-later"
    fleet.world(3, ("save", "fsdp3", 5, name, ["shared"]))
    fleet.world(3, ("begin", name, 8, 5))
    assert load(fleet, "fsdp3", "fsdp3", shared(fleet, name), fresh) == {("SHARED", 5)}


def test_another_jobs_checkpoint_is_used_where_there_is_none_of_its_own(
    fleet: Fleet, fresh: str
) -> None:
    place = fleet.folder / f"{fresh}-shared"
    (older,) = place.glob("step-000000000006*")
    env = {SHARED: str(fleet.folder / "empty"), FROM: str(older)}
    assert load(fleet, "fsdp3", "tp2", env) == {("ELSEWHERE", 6)}
    assert load(fleet, "fsdp3", "tp2", {**env, FROM: str(place)}) == {("ELSEWHERE", 7)}
    assert load(fleet, "fsdp3", "tp2", {**env, **shared(fleet, fresh)}) == {("SHARED", 7)}

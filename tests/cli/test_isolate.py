"""Groups of nodes repeat a step until the bad nodes are known: one, two, or nobody."""

import itertools
import random
from collections.abc import Collection
from pathlib import Path

import pytest

from holdfast.cli.isolate import located
from holdfast.cli.replay import _as_many
from holdfast.diagnosis.group_testing import Group, Located
from holdfast.drivers.nodes import NAMES_VARIABLE, new_names


def found(
    nodes: int, unit: int, bad: Collection[str], *, dies: bool = False
) -> tuple[Located, int]:
    """By repetitions that come out at random, or not at all, wherever a bad node takes part."""
    dice = random.Random(nodes)

    def repeat(group: Group) -> dict[int, dict[str, str]] | None:
        sick = bool(set(group) & set(bad))
        end = f"{dice.random()}" if sick else f"right on {len(group)}"
        return None if sick and dies else {rank: {"w": end} for rank in range(len(group))}

    return located([f"node-{number}" for number in range(nodes)], unit, repeat)


@pytest.mark.parametrize(
    ("nodes", "unit"), [(3, 1), (4, 1), (5, 1), (7, 1), (9, 1), (8, 2), (16, 1)]
)
@pytest.mark.parametrize("dies", [False, True])
def test_one_bad_node_is_found_wherever_it_is(nodes: int, unit: int, dies: bool) -> None:
    for number in range(nodes):
        where, rounds = found(nodes, unit, [f"node-{number}"], dies=dies)
        assert (where.nodes, where.sure) == ((f"node-{number}",), True)
        assert rounds <= 3


@pytest.mark.parametrize(("nodes", "unit"), [(16, 1), (24, 2)])
def test_two_bad_nodes_are_found_wherever_they_are(nodes: int, unit: int) -> None:
    names = [f"node-{number}" for number in range(nodes)]
    for bad in itertools.combinations(names, 2):
        where, rounds = found(nodes, unit, bad)
        assert (set(where.nodes), where.sure) == (set(bad), True)
        assert rounds <= 3


def test_where_all_end_alike_nobody_is_bad() -> None:
    where, rounds = found(9, 1, [])
    assert (where.nodes, where.sure, rounds) == ((), True, 2)


def test_repetitions_have_the_nodes_that_they_are_to_have_and_no_other_job_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(_as_many(["node-3", "node-5"], 4)) == ["node-3", "node-5", "node-3-1", "node-5-1"]
    assert new_names(tmp_path, 2) == ["node-0", "node-1"]
    (tmp_path / "nodes/node-1").mkdir(parents=True)
    assert new_names(tmp_path, 2) == ["node-2", "node-3"]
    monkeypatch.setenv(NAMES_VARIABLE, "node-1,node-5,node-0")
    assert new_names(tmp_path, 1) == ["node-5"]
    assert new_names(tmp_path, 3) == ["node-5", "node-0", "node-6"]

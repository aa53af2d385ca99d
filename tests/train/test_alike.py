"""Ranks that declare `join(in_process=...)` differently are told which of them does what."""

import itertools
from collections.abc import Sequence

import pytest
from torch._C._distributed_c10d import HashStore

from holdfast.errors import Error
from holdfast.train.alike import require_alike
from holdfast.train.parking import IF_DECLARED, PATIENCE, declaration


def told(declared: Sequence[bool], order: Sequence[int]) -> list[str]:
    """What ranks are told that come in this order."""
    store, found = HashStore(), []
    for rank in order:
        try:
            require_alike(store, rank, declared=declared[rank])
        except Error as error:
            found.append(f"{error.slug}: {error.what}")
    return found


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))])
def test_whoever_comes_later_of_two_that_differ_is_told_who_declares_what(
    order: tuple[int, ...],
) -> None:
    for declared in itertools.product((False, True), repeat=3):
        found = told(declared, order)
        assert bool(found) == (len(set(declared)) > 1)
        for what in found:
            slug, _, who = what.partition(": rank ")
            does, does_not = who.split(", rank ")
            assert slug == "declared-differently"
            assert declared[int(does.split()[0])] and not declared[int(does_not.split()[0])], what


@pytest.mark.parametrize("declared", [False, True])
def test_ranks_are_compared_only_where_it_matters_what_they_declare(declared: bool) -> None:
    assert declaration({}, declared=declared) is None, "outside of Holdfast, or all are replaced"
    assert declaration({PATIENCE: "1"}, declared=declared) is None, "the job file has decided"
    assert declaration({PATIENCE: "1", IF_DECLARED: "1"}, declared=declared) is declared

"""Runs without a fault, to compare with; made once per shape."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.train.cluster import Cluster

Make = Callable[..., Cluster]
Undisturbed = Callable[[int, int], list[Any]]
_outcomes: dict[tuple[int, int], list[Any]] = {}


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Make clusters that are taken down with the test."""
    made: list[Cluster] = []

    def new(nodes: int = 1, local: int = 1, **env: str) -> Cluster:
        made.append(Cluster(tmp_path / str(len(made)), nodes, local, env))
        return made[-1]

    yield new
    for cluster in made:
        cluster.close()


@pytest.fixture
def undisturbed(make: Make) -> Undisturbed:
    """The outcome of a run of this shape to which nothing happens."""

    def outcome(nodes: int, local: int) -> list[Any]:
        if (nodes, local) not in _outcomes:
            cluster = make(nodes, local)
            cluster.finish()
            _outcomes[nodes, local] = cluster.outcome()
        return _outcomes[nodes, local]

    return outcome

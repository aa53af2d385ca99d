"""When a snapshot that was taken because a node goes is where it survives that."""

import os
from collections.abc import Iterator

import pytest

from holdfast.agent.storage import urgent_save
from holdfast.agent.storage.protocol import UrgentSaved, Warn
from holdfast.agent.storage.urgent_save import UrgentSave
from holdfast.checkpoint.arena import Arena
from holdfast.checkpoint.key import Key
from holdfast.checkpoint.storage_page import Peer, StoragePage, WorkerInfo
from holdfast.checkpoint.tiers import SnapshotFlag, Tier
from tests.agent.storage.site import snapshot

Node = tuple[Arena, StoragePage]


@pytest.fixture
def node() -> Iterator[Node]:
    fds = [Arena.create(), StoragePage.create()]
    yield Arena(fds[0]), StoragePage(fds[1])
    for fd in fds:
        os.close(fd)


def info(*peers: Peer) -> WorkerInfo:
    return WorkerInfo(attempt=1, rank=0, world_size=2, local_world_size=1, parent=None, peers=peers)


def look(
    save: UrgentSave, node: Node, committed: dict[Tier, Key | None], *peers: Peer
) -> UrgentSaved | None:
    return save.look([node[0]], [node[1]], [info(*peers)], committed, 1)


def taken(node: Node) -> Key:
    key = Key(1, 7)
    snapshot(node[0], key, 0, 2, 64, flags=SnapshotFlag.URGENT)
    return key


def test_without_a_warning_or_a_snapshot_there_is_nothing_to_tell(node: Node) -> None:
    save = UrgentSave()
    save.warn(Warn(within_s=9.0))
    assert look(save, node, {Tier.SHARED: Key(1, 7)}) is None
    taken(node)
    save.warn(Warn(within_s=0.0))
    assert look(save, node, {Tier.SHARED: Key(1, 7)}) is None


def test_a_committed_checkpoint_is_told_once(node: Node) -> None:
    save, key = UrgentSave(), taken(node)
    save.warn(Warn(within_s=9.0))
    assert look(save, node, {Tier.SHARED: Key(1, 6)}) is None
    assert look(save, node, {Tier.SHARED: key}) == UrgentSaved(
        attempt=1, step=7, where="tier shared"
    )
    assert look(save, node, {Tier.SHARED: key}) is None


def test_copies_on_other_nodes_do_where_the_job_goes_on(node: Node) -> None:
    peer, key = Peer(1, "h:1", 0), taken(node)
    save = UrgentSave()
    save.warn(Warn(within_s=9.0))
    assert look(save, node, {}, peer) is None
    node[1].copied(key)
    save.warn(Warn(within_s=9.0, job_ends=True))
    assert look(save, node, {}, peer) is None, "their memory ends with the job"
    save.warn(Warn(within_s=9.0))
    found = look(save, node, {}, peer)
    assert found is not None and found.where == "the memory of other nodes"


def test_copies_among_workers_have_arrived_once_these_have_met(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = UrgentSave()
    save.warn(Warn(within_s=9.0))
    key = taken(node)
    assert look(save, node, {}) is None
    node[1].met(Key(1, 6))
    assert look(save, node, {}) is None, "that was before"
    node[1].met(key)
    assert look(save, node, {}) is not None
    save.warn(Warn(within_s=9.0))
    node[1].met(None)
    assert look(save, node, {}) is None
    monkeypatch.setattr(urgent_save, "MET_S", 0.0)
    assert look(save, node, {}) is not None, "after a while all the same"


@pytest.mark.parametrize("copies", [0, 1])
def test_where_only_the_attempt_ends_it_has_to_be_whole_on_all_ranks(
    node: Node, copies: int
) -> None:
    save, key = UrgentSave(), taken(node)
    save.warn(Warn(within_s=9.0, node_goes=False))
    around = [node[0]], [node[1]], [info()]
    assert save.look(*around, {}, copies) is None, "another rank may not have begun to write it"
    node[1].met(key)
    found = save.look(*around, {}, copies)
    assert found is not None and found.where == "the memory of this node"

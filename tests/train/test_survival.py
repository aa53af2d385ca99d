"""What a worker does again when it is kept, and when it refuses to be."""

import _thread
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any, cast

import msgspec
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from holdfast.agent.environment import node_environment
from holdfast.messages import Assignment
from holdfast.spec import job_from_dict
from holdfast.train import survival
from holdfast.train.parking import (
    IF_DECLARED,
    ORDER,
    PATIENCE,
    VARIABLE,
    ParkingPlace,
    keeps_workers,
)
from holdfast.train.surviving_group import AttemptBrokenError
from tests.patience import PATIENCE_S

MODES: dict[str | None, tuple[bool, bool]] = {  # workers are kept: undeclared, declared
    None: (False, True),
    "auto": (False, True),
    "processes": (False, False),
    "in_process": (True, True),
    "replicas": (True, True),
}


@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_a_worker_is_kept_where_the_job_says_so_or_leaves_it_to_a_script_that_does(
    mode: str | None, declared: bool
) -> None:
    recovery = {} if mode is None else {"mode": mode}
    shape = {"nodes": 2, "elasticity": {"min_nodes": 1}, "recovery": recovery}
    job = job_from_dict({"name": "job", "script": "train.py", **shape}, where="test")
    environ = node_environment(job, "n", 1, {}, {})
    assert keeps_workers(environ, declared=declared) == MODES[mode][declared]


def test_children_of_a_script_that_declares_nothing_cannot_answer_either() -> None:
    environ = {VARIABLE: "9", PATIENCE: "1", IF_DECLARED: "1"}
    assert ParkingPlace.of(environ, declared=False) is None
    assert VARIABLE not in environ


class Group:
    """One that only writes down what it is asked for."""

    private = False

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []

    def ask(self, name: str, given: Any, _options: Any) -> "Group":
        self.asked.append((name, [one.tolist() for one in given[0]]))
        given[0][0].zero_()  # as a collective changes what it is given
        return self

    def wait(self) -> None:
        self.asked.append(("over", None))

    def form(self) -> None:
        self.asked.append(("formed", None))

    def drop(self) -> None:
        self.asked.append(("let go", None))

    def close_connections(self) -> None:
        self.asked.append(("closed", None))


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, ParkingPlace]]:
    ours, theirs = socket.socketpair()
    yield theirs, ParkingPlace(ours, patience_s=0.01)
    ours.close()
    theirs.close()


def said(agent: socket.socket) -> list[dict[str, str]]:
    """What the worker has told its agent."""
    agent.setblocking(False)
    try:
        return [json.loads(line) for line in agent.recv(4096).splitlines()]
    except BlockingIOError:
        return []


def test_what_was_done_above_the_loop_is_done_again_in_order_with_the_first_values(
    ends: tuple[socket.socket, ParkingPlace],
) -> None:
    kept, group, ours = survival.Survival(ends[1]), Group(), Group()
    ours.private = True
    value = torch.tensor([4.0])
    kept.add(group)  # type: ignore[arg-type]
    kept.record(group, "allreduce", ([value],), {})  # type: ignore[arg-type]
    value.fill_(9.0)
    kept.again(lambda: group.asked.append(("ours", None)))
    kept.record(ours, "allreduce", ([value],), {})  # type: ignore[arg-type]
    kept.unrecorded(lambda: kept.record(group, "broadcast", ([value],), {}))  # type: ignore[arg-type]
    kept.enter_loop()
    kept.record(group, "allreduce", ([value],), {})  # type: ignore[arg-type]
    for _ in range(2):
        group.asked.clear()
        kept.do_again()
        assert group.asked == [
            ("formed", None),
            ("allreduce", [[4.0]]),
            ("ours", None),
            ("over", None),
        ]
    assert [news["state"] for news in said(ends[0])] == ["able"] and not ours.asked


def test_only_within_the_loop_a_peer_that_is_gone_breaks_the_attempt_quietly(
    ends: tuple[socket.socket, ParkingPlace],
) -> None:
    kept, group = survival.Survival(ends[1]), Group()
    kept.add(group)  # type: ignore[arg-type]
    kept.break_up(RuntimeError("gone"))
    kept.require_whole()
    kept.enter_loop()
    kept.break_up(RuntimeError("gone"))
    kept.break_up(RuntimeError("gone again"))
    with pytest.raises(AttemptBrokenError):
        kept.require_whole()
    assert group.asked == [("closed", None)], "so that nobody waits for us"
    with pytest.raises(RuntimeError, match=r"^gone$"):
        kept.await_next()  # nobody ends the attempt: it fails as it would have


def test_what_is_left_of_the_attempt_is_let_go_while_the_next_one_is_waited_for(
    ends: tuple[socket.socket, ParkingPlace], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others wait for the groups of the next attempt, not for those of the last to be closed."""
    kept, group = survival.Survival(ends[1]), Group()
    kept.add(group)  # type: ignore[arg-type]
    kept.enter_loop()
    ends[0].send(ORDER)
    ends[1]._patience_s = PATIENCE_S  # it is heard by a thread
    letting_go: list[list[dict[str, str]]] = []

    def let_go() -> None:
        letting_go.append(said(ends[0]))
        rank = Assignment(attempt=2, rank=0, local_rank=0, world_size=1, redo_until=0, env={})
        ends[0].send(msgspec.json.encode(rank) + b"\n")

    monkeypatch.setattr(group, "drop", let_go)
    kept.await_next()
    (before,) = letting_go
    assert [news["state"] for news in before] == ["able", "parked"], "nobody waits for that either"


def test_what_cannot_be_kept_is_refused_once_with_the_first_reason(
    ends: tuple[socket.socket, ParkingPlace], capfd: pytest.CaptureFixture[str]
) -> None:
    kept, group = survival.Survival(ends[1]), Group()
    much = torch.zeros(survival.RECORD_BYTES_MAX // 4)
    kept.record(group, "allreduce", ([much],), {})  # type: ignore[arg-type]
    assert said(ends[0]) == []
    kept.record(group, "allreduce", ([much[:1]],), {})  # type: ignore[arg-type]
    kept.refuse("another reason")
    (news,) = said(ends[0])
    assert news["state"] == "unable" and "64 MiB" in news["why"]
    kept.enter_loop()
    assert not kept.in_loop, "so its collectives raise, as in any process"
    assert capfd.readouterr().err.count("is replaced when an attempt fails") == 1


def test_a_worker_on_a_gpu_is_replaced_and_its_groups_are_pytorchs_own(
    ends: tuple[socket.socket, ParkingPlace], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survival, "_ours", [])
    plain = torch.distributed.distributed_c10d._new_process_group_helper
    survival.install(ends[1], torch.device("cuda", 0))
    c10d: Any = torch.distributed.distributed_c10d
    assert c10d._new_process_group_helper is plain
    (told,) = said(ends[0])
    assert told["state"] == "unable" and "it computes on cuda" in told["why"]


def test_a_group_made_within_the_loop_and_a_second_loop_are_refused(
    ends: tuple[socket.socket, ParkingPlace],
) -> None:
    kept = survival.Survival(ends[1])
    kept.enter_loop()
    kept.leave_loop()
    assert [news["state"] for news in said(ends[0])] == ["able", "unable"]
    kept.enter_loop()
    assert not kept.in_loop
    (news,) = said(ends[0])
    assert news["why"] == "the first training loop of the script is over"

    other = survival.Survival(ends[1])
    other.enter_loop()
    other.add(Group())  # type: ignore[arg-type]
    assert "within its training loop" in said(ends[0])[-1]["why"]


def test_a_thread_of_the_script_that_takes_part_in_collectives_is_refused(
    ends: tuple[socket.socket, ParkingPlace],
) -> None:
    """A group that was taken apart under it crashed the process."""
    kept, group, ours = survival.Survival(ends[1]), Group(), Group()
    ours.private = True
    given = ([torch.ones(1)],)
    kept.record(group, "allreduce", given, {})  # type: ignore[arg-type]
    for act in (
        lambda: kept.record(ours, "allreduce", given, {}),  # type: ignore[arg-type]
        lambda: _thread.start_new_thread(cast("Any", kept.record), (group, "allreduce", given, {})),
    ):
        begun = threading.Thread(target=act)
        begun.start()
        begun.join()
    assert said(ends[0]) == [], "our own threads may, and those that PyTorch has"
    begun = threading.Thread(target=kept.record, args=(group, "allreduce", given, {}))
    begun.start()
    begun.join()
    (news,) = said(ends[0])
    assert news["why"] == "a thread of the script takes part in collectives"


@pytest.mark.parametrize("state", [None, "a group", "its own"])
def test_a_communication_hook_with_a_state_of_its_own_is_refused(
    state: str | None, ends: tuple[socket.socket, ParkingPlace], monkeypatch: pytest.MonkeyPatch
) -> None:
    """PowerSGD counts its steps: a new process began with other collectives than who was kept."""
    registered: list[Any] = []
    plain = lambda _, *given: registered.append(given)  # noqa: E731
    monkeypatch.setattr(DistributedDataParallel, "register_comm_hook", plain)
    monkeypatch.setattr(DistributedDataParallel, "_set_static_graph", print)
    survival._watch_hooks(survival.Survival(ends[1]))
    group = cast("Any", dist.ProcessGroup)(0, 1)
    given: Any = {None: None, "a group": group, "its own": object()}[state]
    DistributedDataParallel.register_comm_hook(cast("Any", None), given, cast("Any", print))
    assert registered == [(given, print)]
    assert [news["state"] for news in said(ends[0])] == (["unable"] if state == "its own" else [])


def test_ddp_with_a_static_graph_is_refused(
    ends: tuple[socket.socket, ParkingPlace], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first step has other collectives than later ones: who was kept failed with a new one."""
    made: list[Any] = []
    monkeypatch.setattr(DistributedDataParallel, "register_comm_hook", print)
    monkeypatch.setattr(DistributedDataParallel, "_set_static_graph", made.append)
    survival._watch_hooks(survival.Survival(ends[1]))
    cast("Any", DistributedDataParallel)._set_static_graph("it")
    (news,) = said(ends[0])
    assert made == ["it"] and "static_graph" in news["why"]


class SizedGroup(Group):
    """One of so many ranks."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size

    def size(self) -> int:
        return self._size

    def move(self, rank: int, size: int) -> None:
        self.asked.append(("moved", (rank, size)))
        self._size = size


@pytest.fixture
def three_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "3")


@pytest.mark.usefixtures("three_ranks")
def test_who_takes_another_rank_does_all_again_with_as_many_as_there_are(
    ends: tuple[socket.socket, ParkingPlace],
) -> None:
    kept, group = survival.Survival(ends[1], moves=True), SizedGroup(3)
    one = torch.tensor([4.0])
    kept.add(group)  # type: ignore[arg-type]
    kept.record(group, "allgather", ([[one.clone() for _ in range(3)]], [one]), {})  # type: ignore[arg-type]
    kept.enter_loop()
    assert said(ends[0])[-1] == {"state": "able", "why": "", "moves": True}
    env = {"RANK": "0", "WORLD_SIZE": "2"}
    told = {"attempt": 2, "rank": 0, "local_rank": 0, "world_size": 2, "redo_until": 0, "env": env}
    ends[0].setblocking(True)
    ends[1]._patience_s = PATIENCE_S
    ends[0].sendall(b"park\n")
    kept.break_up(None)
    ends[0].sendall(json.dumps(told).encode() + b"\n")
    kept.await_next()
    group.ask = lambda name, given, _: (group.asked.append((name, given)), group)[1]  # type: ignore[assignment, func-returns-value]
    kept.do_again()
    (outputs,), _ = dict(group.asked)["allgather"]
    assert dict(group.asked)["moved"] == (0, 2) and len(outputs) == 2


@pytest.mark.usefixtures("three_ranks")
@pytest.mark.parametrize("what", ["some ranks", "scatter"])
def test_who_depends_on_the_number_of_ranks_can_only_be_kept_with_its_own(
    what: str, ends: tuple[socket.socket, ParkingPlace], capfd: pytest.CaptureFixture[str]
) -> None:
    kept, group = survival.Survival(ends[1], moves=True), SizedGroup(3)
    kept.add(group)  # type: ignore[arg-type]
    if what == "scatter":
        kept.record(group, "scatter", ([[torch.ones(1)]],), {})  # type: ignore[arg-type]
    else:
        kept.add(SizedGroup(2))  # type: ignore[arg-type]
    kept.enter_loop()
    assert said(ends[0])[-1] == {"state": "able", "why": "", "moves": False}
    assert "is replaced when the number of ranks changes" in capfd.readouterr().err

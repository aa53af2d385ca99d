"""Gradients are those of DDP, and do not depend on how many steps ago the worker started."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from torch.nn.parallel import DistributedDataParallel

from holdfast.integrations.unsent import Unsent
from holdfast.train.parallel import data_parallel, spread
from tests.more import sample, thinned
from tests.patience import PATIENCE_S
from tests.train.forks import FORKS
from tests.train.test_huge_pages import is_asked

CPU = torch.device("cpu")
Gradients = list[torch.Tensor]


def model() -> torch.nn.Module:
    """About three megabytes of parameters: more than one bucket."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(500, 500) for _ in range(3)]
    return torch.nn.Sequential(*[part for layer in layers for part in (layer, torch.nn.GELU())])


def gradients(wrapped: torch.nn.Module, steps: range, rank: int) -> list[Gradients]:
    """Of each step, without ever changing the parameters."""
    found = []
    for step in steps:
        drawn = torch.Generator().manual_seed(step * 100 + rank)
        wrapped.zero_grad()
        wrapped(torch.randn(4, 500, generator=drawn)).square().sum().backward()
        found.append([p.grad.clone() for p in wrapped.parameters() if p.grad is not None])
    return found


def same(a: Gradients, b: Gradients) -> bool:
    return len(a) == len(b) > 0 and all(map(torch.equal, a, b))


def steps_are_alike(rank: int, options: dict[str, Any]) -> None:
    """A model wrapped just now and one that has done steps before find the same gradients."""
    old = gradients(data_parallel(model(), CPU, settled=False, options=options), range(4), rank)
    new = gradients(data_parallel(model(), CPU, settled=True, options=options), range(3, 4), rank)
    assert same(old[3], new[0])
    assert not same(old[2], old[3])


def as_ddp(rank: int, options: dict[str, Any]) -> None:
    """On two ranks a sum has only one order, so plain DDP must agree in every bit."""
    ours = gradients(data_parallel(model(), CPU, settled=False, options=options), range(3), rank)
    theirs = gradients(DistributedDataParallel(model(), **options), range(3), rank)
    assert all(map(same, ours, theirs))


def spreads(rank: int, _: dict[str, Any]) -> None:
    """Everybody has what rank 0 had."""
    net = torch.nn.BatchNorm1d(3)
    torch.nn.init.constant_(net.weight, rank + 5.0)
    assert net.running_mean is not None
    net.running_mean.fill_(rank + 7.0)
    spread(net)
    assert (net.weight == 5).all() and (net.running_mean == 7).all()


def unsent_is_settled(rank: int, _: dict[str, Any]) -> None:
    """What a snapshot has not restored is sent: buffers that it has not, or, where there was none,
    everything, also by the first use of the model."""
    for restored, by_use in ((True, False), (False, False), (False, True)):
        net = torch.nn.BatchNorm1d(3).eval()
        torch.nn.init.constant_(net.weight, rank + 5.0)
        net.register_buffer("scratch", torch.full((1,), rank + 7.0), persistent=False)
        unsent = Unsent()
        with unsent.making():
            wrapped = DistributedDataParallel(net)
        assert net.weight[0] == rank + 5, "not sent yet"
        if by_use:
            wrapped(torch.ones(2, 3))
        unsent.settle(restored=restored)
        assert net.scratch == 7 and net.weight[0] == (rank if restored else 0) + 5
    assert "making" not in DistributedDataParallel.__init__.__qualname__


def has_large_buckets(_rank: int, _: dict[str, Any]) -> None:
    """Gradients of a model, which stay from the first step to the last, are in huge pages."""
    wrapped = data_parallel(torch.nn.Linear(3000, 3000), CPU, settled=True, options={})
    wrapped(torch.ones(2, 3000)).sum().backward()
    assert wrapped.module.weight.grad is not None
    assert is_asked(wrapped.module.weight.grad)


def on_every_rank(folder: Path, world_size: int, check: Any, **options: Any) -> None:
    """Run a check in this many processes of one process group."""
    store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    arguments = (world_size, store.port, str(folder), check, options)
    ranks = [FORKS.Process(target=_join_and, args=(r, *arguments)) for r in range(world_size)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(PATIENCE_S)
        rank.kill()
        rank.join()
    story = "".join(log.read_text() for log in folder.glob("*.log"))
    assert [rank.exitcode for rank in ranks] == [0] * world_size, story


def _join_and(
    rank: int, world_size: int, port: int, folder: str, check: Any, options: dict[str, Any]
) -> None:
    os.dup2(os.open(f"{folder}/{rank}.log", os.O_WRONLY | os.O_CREAT), 2)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world_size)}
    os.environ |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "GLOO_SOCKET_IFNAME": "lo"}
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    check(rank, options)
    dist.destroy_process_group()


OPTIONS: list[dict[str, Any]] = [
    {},
    {"gradient_as_bucket_view": True},
    {"find_unused_parameters": True},
    {"static_graph": True},
    {"bucket_cap_mb": 1},
]


@pytest.mark.parametrize("options", thinned(OPTIONS, 3), ids=str)
@pytest.mark.parametrize("world_size", sample([3], [2]))
def test_a_fresh_worker_finds_the_gradients_an_old_one_would(
    tmp_path: Path, world_size: int, options: dict[str, Any]
) -> None:
    on_every_rank(tmp_path, world_size, steps_are_alike, **options)


@pytest.mark.parametrize("options", thinned(OPTIONS, 2), ids=str)
def test_gradients_are_those_of_plain_ddp(tmp_path: Path, options: dict[str, Any]) -> None:
    on_every_rank(tmp_path, 2, as_ddp, **options)


def test_everybody_gets_the_parameters_and_buffers_of_rank_0(tmp_path: Path) -> None:
    on_every_rank(tmp_path, 3, spreads)


def test_a_model_that_was_not_sent_is_settled_before_it_is_used(tmp_path: Path) -> None:
    on_every_rank(tmp_path, 2, unsent_is_settled)


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").is_dir(), reason="no huge pages here"
)
def test_gradients_of_a_large_model_are_in_huge_pages(tmp_path: Path) -> None:
    on_every_rank(tmp_path, 2, has_large_buckets)

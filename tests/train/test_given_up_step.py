"""What a step that was given up leaves out, and that nothing of it can be told afterwards."""

import os
import socket
from multiprocessing import get_context
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import TCPStore
from torch.nn.parallel import DistributedDataParallel

from holdfast.train import survival
from holdfast.train.parking import ParkingPlace
from holdfast.train.surviving_group import SurvivingGroup

LAYERS = 6


class Counted(torch.autograd.Function):
    """Counts backward passes through it, and breaks the attempt at one of them."""

    passes = 0
    breaks_at = 0
    kept: Any = None

    @staticmethod
    def forward(_: Any, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(_: Any, grad: Tensor) -> Tensor:
        Counted.passes += 1
        if Counted.passes == Counted.breaks_at:
            Counted.kept.break_up(None)
        return grad


class Deep(nn.Module):
    """Layers in a row, each in a bucket of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(LAYERS))

    def forward(self, value: Tensor) -> Tensor:
        for layer in self.layers:
            value = Counted.apply(layer(value))  # type: ignore[no-untyped-call]
        return value


def _kept() -> survival.Survival:
    """This process can be kept, and is a group of one."""
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(server.port)}
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    ends = socket.socketpair()
    kept = survival.install(ParkingPlace(ends[0], 0.01), torch.device("cpu"))
    kept.ends = (server, ends)  # type: ignore[attr-defined]  # they live as long
    dist.init_process_group("gloo")
    return kept


class Story(NamedTuple):
    """Of three good steps and, behind the first, one that is given up."""

    passes: int  # through layers in the second step
    same: bool  # parameters after it
    zero: bool  # all gradients after it
    asked: list[str]  # collectives of the last two
    curve: list[float]  # a sum over all parameters after each good step


def _trains(by_ddp: bool, breaks: str, results: Any) -> None:
    kept = Counted.kept = _kept()
    model = DistributedDataParallel(Deep(), bucket_cap_mb=0.01)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    kept.given_up.by_ddp = by_ddp
    kept.enter_loop()
    asked: list[str] = []
    ask = SurvivingGroup.ask

    def noted(self: SurvivingGroup, name: str, *given: Any) -> Any:
        asked.append(name)
        return ask(self, name, *given)

    def step() -> float:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 64)).sum()
        if Counted.breaks_at < 0:
            kept.break_up(None)
        loss.backward()
        optimizer.step()
        return sum(one.double().sum().item() for one in model.parameters())

    curve = [step()]
    passes, same, zero = 0, True, False
    if breaks:
        was = [one.detach().clone() for one in model.parameters()]
        Counted.passes, Counted.breaks_at = 0, {"before": -1, "within": 2}[breaks]
        step()
        passes, Counted.breaks_at = Counted.passes, 0
        same = all(map(torch.equal, was, model.parameters()))
        zero = all(one.grad is not None and not one.grad.any() for one in model.parameters())
        kept._broken = False  # the next attempt: its groups are formed, its state is put back
        kept.do_again()
    SurvivingGroup.ask = noted  # type: ignore[method-assign, assignment]
    curve += [step(), step()]
    results.send(Story(passes, same, zero, asked, curve))


def train(*, by_ddp: bool, breaks: str) -> Story:
    """In a process of its own, because PyTorch is changed there."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_trains, args=(by_ddp, breaks, theirs))
    process.start()
    theirs.close()
    try:
        story: Story = ours.recv()
        return story
    finally:
        process.join()


def test_a_step_that_was_given_up_ends_early_and_the_next_ones_are_as_without() -> None:
    calm = train(by_ddp=True, breaks="")
    for breaks, at_most in (("before", 0), ("within", LAYERS // 2)):
        story = train(by_ddp=True, breaks=breaks)
        assert story.passes <= at_most, "it is left at the next collective"
        assert story.same, "an optimizer changes nothing"
        assert story.zero, "a script that looks at its gradients finds some"
        assert story.asked == calm.asked, "as new processes ask, which know of nothing"
        assert story.curve == calm.curve, "neither DDP nor Adam know of it"


def test_where_others_take_part_it_runs_to_its_end() -> None:
    story = train(by_ddp=False, breaks="within")
    assert story.passes == LAYERS and not story.same

"""Loss curves of one small Llama in every layout, in processes that are used again and again.

A process plays one rank of one attempt after the other: it joins a new process group, makes a run
from the environment as `join()` does, builds the model from other random numbers each time, and
trains. What outlives an attempt is its snapshot memory, as in a job.
"""

import math
import multiprocessing.connection
import os
import traceback
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple, cast

import msgspec
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.nn.functional import dropout, scaled_dot_product_attention

from holdfast.checkpoint.arena import Arena
from holdfast.dimensions import VARIABLE, Layout, told
from holdfast.errors import Error
from holdfast.page import Page
from holdfast.train import Run, loader
from holdfast.train.outer_steps import VARIABLE as OUTER
from holdfast.train.outer_steps import OuterRequest
from holdfast.train.placement import REPLICA_NODES, find_placement
from holdfast.train.progress import ProgressReporter
from llama import PLACES, Attention, Llama, Shape, mean_loss, rotated
from tests.more import MORE
from tests.patience import PATIENCE_S
from tests.train.forks import FORKS

STEPS = 30 if MORE else 6
GLOBAL_BATCH = 8


SHAPE = Shape(vocabulary=32, context=16, layers=4, heads=4, kv_heads=2, width=32, hidden=64)
EXPERTS = replace(SHAPE, hidden=32, experts=4)


class Attempt(NamedTuple):
    """What a rank is to do."""

    layout: Layout | None
    world: int
    until: int = STEPS
    seed: int = 1  # of the parameters; a restart has another one
    arena: str = ""  # of the memory that outlives the attempt; none if empty
    outer: OuterRequest | None = None
    nodes_each: int = 1  # of a replica
    stops: int = 0  # after so many losses the loop is asked to end; 0: never
    experts: bool = False  # the model has some
    dropout: float = 0.0  # between blocks, in a script that seeds nothing
    heads: str | None = None  # queries have norms of heads, for which the plan has this word
    tied: bool = False  # embedding and head are one parameter
    linear: bool = False  # SGD with momentum and nothing clipped, instead of AdamW


class Text(torch.utils.data.Dataset[torch.Tensor]):
    """Sequences that can be learned: tokens that grow by 1, 2 or 3."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> torch.Tensor:
        places = torch.arange(SHAPE.context + 1)
        return (index + places * (1 + index // 32 % 3)) % 32


class CurveRank:
    """One process."""

    def __init__(self) -> None:
        self.arenas: dict[str, int] = {}

    def attempt(self, rank: int, number: int, port: int, what: Attempt) -> list[float]:
        """Train; the mean loss over all ranks of each step done."""
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(what.world), "LOCAL_RANK": "0"}
        os.environ |= {"LOCAL_WORLD_SIZE": "1", "HOLDFAST_ATTEMPT": str(number)}
        os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "HOLDFAST_SNAPSHOT_EVERY": "1"}
        os.environ.pop(VARIABLE, None)
        os.environ.pop("HOLDFAST_ARENA_FD", None)
        os.environ.pop(OUTER, None)
        os.environ[REPLICA_NODES] = str(what.nodes_each)
        if what.outer is not None:
            os.environ[OUTER] = msgspec.json.encode(what.outer).decode()
        if what.layout is not None:
            os.environ[VARIABLE] = told(what.layout)
        if what.arena:
            fd = self.arenas.setdefault(what.arena, Arena.create())
            os.environ["HOLDFAST_ARENA_FD"] = str(fd)
        store = PrefixStore(str(number), TCPStore("127.0.0.1", port, is_master=False))
        dist.init_process_group("gloo", store=store, rank=rank, world_size=what.world)
        losses = self._train(what)
        dist.barrier()  # or a peer may find a connection closed
        dist.destroy_process_group()
        # it keeps meshes, with groups that are gone now
        _clear_sharding_prop_cache()  # type: ignore[no-untyped-call]
        return losses

    def _train(self, what: Attempt) -> list[float]:
        torch.manual_seed(what.seed)
        model: torch.nn.Module = Llama(EXPERTS if what.experts else SHAPE)
        placement = find_placement()
        if what.tied:
            model.get_submodule("head").weight = model.get_parameter("embedding.weight")
        if what.dropout:
            _drop_out(model, what.dropout)
            torch.manual_seed(what.seed + placement.rank)
        run = Run(placement, torch.device("cpu"), ProgressReporter(Page(Page.create()), 0))
        plan = None
        if what.heads is not None:
            _norm_heads(model)
            named = {"layers.*.attention.query_norm": what.heads} if what.heads else {}
            plan = {**Llama.tp_plan, **named}
        if what.layout:
            model = run.parallelize(model, places=PLACES, plan=plan)
        else:
            model = run.parallelize(model)
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(
            model.parameters(), lr=1e-2, foreach=False
        )
        if what.linear:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
        clip = None if what.linear else 0.5
        ranks = what.layout.resolve(what.world) if what.layout else None
        data = loader(Text(), GLOBAL_BATCH // (ranks.data if ranks else what.world))
        state = run.track(model=model, optimizer=optimizer, loader=data)
        losses = []
        for _, batch in state.steps(STEPS):
            tokens, targets = batch[:, :-1], batch[:, 1:]
            result = run.train_step(optimizer, tokens, targets=targets, loss=mean_loss, clip=clip)
            mean = result.loss / what.world
            dist.all_reduce(mean)
            run.log(loss=mean, grad_norm=result.grad_norm)
            losses.append(float(mean))
            if ranks is not None and ranks.tp > 1:
                _require_alike(result.loss, run.mesh["tp"].get_group())
            if len(losses) == what.stops:
                state.stop()
            if len(losses) == what.until:
                break
        return losses


class NormedAttention(Attention):
    """With a norm that sees each head of the queries."""

    def forward(self, x: torch.Tensor, rope: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            part(x).unflatten(-1, (-1, self.head_width))
            for part in (self.query, self.key, self.value)
        )
        query = rotated(self.query_norm(query).transpose(1, 2), rope)  # type: ignore[operator]
        key, value = (
            part.repeat_interleave(query.shape[1] // part.shape[2], 2).transpose(1, 2)
            for part in (key, value)
        )
        mixed = scaled_dot_product_attention(query, rotated(key, rope), value, is_causal=True)
        joined: torch.Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return joined


def _norm_heads(model: torch.nn.Module) -> None:
    for module in [one for one in model.modules() if isinstance(one, Attention)]:
        module.query_norm = torch.nn.RMSNorm(module.head_width)
        module.__class__ = NormedAttention


def _drop_out(model: torch.nn.Module, share: float) -> None:
    for layer in model.get_submodule("layers").children():
        layer.register_forward_hook(lambda _module, _given, out: dropout(out, share))


def _require_alike(loss: torch.Tensor, group: Any) -> None:
    """Ranks along `tp` compute the same."""
    losses = [torch.empty_like(loss) for _ in range(dist.get_world_size(group))]
    dist.all_gather(losses, loss, group=group)
    assert all(torch.equal(other, loss) for other in losses), losses


def serve(pipe: Any) -> None:
    """Do what is said until told to stop."""
    torch.set_num_threads(1)
    rank = CurveRank()
    for arguments in iter(pipe.recv, None):
        try:
            answer: Any = rank.attempt(*arguments)
        except Error as error:
            answer = str(error)
        except BaseException:
            answer = traceback.format_exc()
        pipe.send(answer)


class CurveFleet:
    """The processes."""

    def __init__(self, size: int) -> None:
        self._store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
        self._number = 0
        self._pipes: list[Any] = []
        self._processes: list[Any] = []
        self._start(size)

    def _start(self, size: int) -> None:
        self._pipes.clear()
        self._processes.clear()
        for _ in range(size):
            here, there = FORKS.Pipe()
            process = FORKS.Process(target=serve, args=(there,), daemon=True)
            process.start()
            self._pipes.append(here)
            self._processes.append(process)

    def losses(self, layout: Mapping[str, Any] | None, world: int, **what: Any) -> list[float]:
        """Those of one attempt, the same on all ranks."""
        asked = None if layout is None else Layout(**layout)
        self._number += 1
        try:
            return self._train(asked, world, what)
        except AssertionError:
            self.close()  # the other ranks wait for the one that failed
            self._start(len(self._pipes))
            raise

    def _train(self, asked: Layout | None, world: int, what: Any) -> list[float]:
        for rank in range(world):
            attempt = Attempt(asked, world, **what)
            self._pipes[rank].send((rank, self._number, self._store.port, attempt))
        waiting: list[Any] = self._pipes[:world]
        answers: list[list[float]] = []
        while waiting:
            ready = multiprocessing.connection.wait(waiting, PATIENCE_S)
            assert ready, "no answer"
            for pipe in [*ready]:
                answer = cast("Any", pipe).recv()
                assert isinstance(answer, list), answer
                answers.append(answer)
                waiting.remove(pipe)
        assert all(answer == answers[0] for answer in answers)
        return answers[0]

    def close(self) -> None:
        """End the processes."""
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            pipe.send(None)
            process.kill()
            process.join()


def apart(a: list[float], b: list[float]) -> float:
    """The largest relative difference."""
    assert len(a) == len(b)
    return max(abs(x - y) / y for x, y in zip(a, b, strict=True) if math.isfinite(y))

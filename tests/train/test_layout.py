"""Names and roles of parameters, without any process group."""

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from holdfast.checkpoint.index import EVERYWHERE, ON_NODE
from holdfast.train import optimizers
from holdfast.train.layout import HeldParameter, Ranks, assign
from holdfast.train.names import Names, unwrapped
from holdfast.train.tracked import Tracked


class Nested(nn.Module):
    """A model one of whose layers is called as DDP calls what it wraps."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(2, 2)
        self.head = checkpoint_wrapper(nn.Linear(2, 2))


def names(model: nn.Module) -> list[str]:
    inner = unwrapped(model)
    name = Names(inner)
    return [name(raw) for raw, _ in inner.named_parameters()]


def test_wrappers_leave_no_trace_in_names_and_layers_do() -> None:
    plain = ["module.weight", "module.bias", "head.weight", "head.bias"]
    assert names(Nested()) == plain
    assert names(torch.compile(Nested())) == plain  # type: ignore[arg-type]
    assert names(nn.DataParallel(Nested())) == plain


def entry(name: str, at: int = 0, size: int = 8, synced_by: str = "all") -> HeldParameter:
    return HeldParameter(name, (4,), (at,), size, synced_by)


def roles(tables: list[list[HeldParameter]], local: int = 1) -> list[dict[str, tuple[bool, int]]]:
    worlds = [Ranks(rank, len(tables), local) for rank in range(len(tables))]
    return [{n: r[:2] for n, r in assign(tables, ranks).items()} for ranks in worlds]


@pytest.mark.parametrize("local", [1, 2, 4])
def test_each_part_is_written_once_for_all_and_once_per_node(local: int) -> None:
    tables = [[entry(f"w{n}", size=n + 1) for n in range(7)] for _ in range(4)]
    given = roles(tables, local)
    for name in (f"w{n}" for n in range(7)):
        assert sum(bool(role[name][1] & EVERYWHERE) for role in given) == 1
        for node in range(0, 4, local):
            here = given[node : node + local]
            assert sum(bool(role[name][1] & ON_NODE) for role in here) == 1
    loads = [sum(n + 1 for n in range(7) if role[f"w{n}"][1] & EVERYWHERE) for role in given]
    assert max(loads) - min(loads) <= 1


def test_shards_are_written_by_those_who_have_them() -> None:
    given = roles([[entry("w", at=2 * rank)] for rank in range(2)])
    assert given == [{"w": (False, EVERYWHERE | ON_NODE)}] * 2


@pytest.mark.parametrize(
    ("synced", "own"),
    [(("all", "all"), False), (("", ""), True), (("mesh a", "mesh b"), True), (("", "all"), True)],
)
def test_equal_names_are_one_tensor_only_where_something_keeps_them_equal(
    synced: tuple[str, str], own: bool
) -> None:
    given = roles([[entry("w", synced_by=synced_by)] for synced_by in synced])
    assert [role["w"][0] for role in given] == [own, own]


def test_a_name_on_one_rank_only_is_a_tensor_of_all() -> None:
    given = roles([[entry("first", synced_by="")], [entry("second", synced_by="")]])
    assert given == [{"first": (False, 3)}, {"second": (False, 3)}]


def test_the_state_of_an_optimizer_goes_by_names_there_and_back() -> None:
    def made() -> tuple[nn.Linear, torch.optim.Optimizer, Tracked, nn.Parameter]:
        model, loose = nn.Linear(3, 2), nn.Parameter(torch.ones(2))
        optimizer = torch.optim.Adam([model.weight, model.bias, loose])
        objects = {"model": model, "optimizer": optimizer}
        tracked = Tracked(objects, torch.device("cpu"), [], Ranks(0, 1, 1), None)
        return model, optimizer, tracked, loose

    model, optimizer, tracked, loose = made()
    for number, parameter in enumerate([model.weight, model.bias, loose]):
        parameter.grad = torch.full_like(parameter, number + 1.0)
    optimizer.step()
    state = optimizers.by_name(optimizer, tracked.names.name_of)
    assert state["param_groups"][0]["params"] == ["weight", "bias", 2]
    other, second, again, _ = made()
    optimizers.load(second, state, again.names.meant_by("optimizer"))
    for mine, theirs in ((other.weight, model.weight), (other.bias, model.bias)):
        assert torch.equal(second.state[mine]["exp_avg"], optimizer.state[theirs]["exp_avg"])
    assert again.names.of_optimizer("optimizer").keys() == {"weight", "bias", 2}

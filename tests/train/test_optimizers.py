"""A restored optimizer has the groups it had, whatever the script has built before."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from holdfast.checkpoint import save
from holdfast.checkpoint.arena import OWN, Arena
from holdfast.checkpoint.key import Key
from holdfast.checkpoint.manifest import Lineage
from holdfast.checkpoint.open_store import open_store
from holdfast.checkpoint.settings import CheckpointSettings
from holdfast.checkpoint.tiers import Tier
from holdfast.errors import Error
from holdfast.train.cadence import Cadence
from holdfast.train.layout import Ranks
from holdfast.train.placement import Placement
from holdfast.train.restore import bring_in
from holdfast.train.snapshots import Snapshotter
from holdfast.train.tracked import Tracked

ALONE = Ranks(0, 1, 1)
ADDED_AT, STEPS = 3, 6


class Script:
    """A script that trains a head first, and from step 3 on the trunk as well."""

    def __init__(self, *, trunk: bool = False, twin: bool = False) -> None:
        """`trunk`: trained from the beginning; `twin`: another module has the same names."""
        torch.manual_seed(4)
        self.model = nn.ModuleDict({"trunk": nn.Linear(3, 4), "head": nn.Linear(4, 2)})
        self.twin = nn.ModuleDict({"trunk": nn.Linear(3, 4), "head": nn.Linear(4, 2)})
        self.model["trunk"].requires_grad_(trunk)
        groups = [{"params": list(self.model["head"].parameters())}]
        if trunk:
            groups.append({"params": list(self.model["trunk"].parameters())})
        self.optimizer = torch.optim.AdamW(groups, lr=0.1, foreach=False)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, STEPS)
        objects: dict[str, Any] = {"schedule": self.schedule, "model": self.model}
        if twin:
            objects["twin"] = self.twin.requires_grad_(False)
        objects["optimizer"] = self.optimizer
        self.tracked = Tracked(objects, torch.device("cpu"), [], ALONE, None)

    def train(self, first: int, last: int) -> None:
        """These steps."""
        for step in range(first, last):
            if step == ADDED_AT:
                self.model["trunk"].requires_grad_()
                added = list(self.model["trunk"].parameters())
                self.optimizer.add_param_group({"params": added, "lr": 0.02, "weight_decay": 0.3})
                self.optimizer.param_groups[1]["initial_lr"] = 0.02
                self.schedule.base_lrs.append(0.02)
            x = torch.full((5, 3), step + 1.0)
            loss = self.model["head"](self.model["trunk"](x).tanh()).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.schedule.step()

    def outcome(self) -> list[Any]:
        """Everything that has to be as if nothing had happened."""
        state = self.optimizer.state_dict()
        moments = [
            {k: v.tolist() for k, v in sorted(one.items())} for one in state["state"].values()
        ]
        schedule = {k: v for k, v in self.schedule.state_dict().items() if not k.startswith("_")}
        parameters = [p.tolist() for p in self.model.parameters()]
        return [parameters, moments, state["param_groups"], schedule]


class Kept:
    """Memory and a place, which outlive the script."""

    def __init__(self, folder: Path) -> None:
        self.fd = Arena.create()
        self.arena = Arena(self.fd)
        self.place = str(folder / "shared")

    def keep(self, script: Script, step: int) -> None:
        """A snapshot, and a checkpoint of it."""
        where = self.arena, None, None, Placement(0, 0, 1, 1, 1, 0, True)
        snapshots = Snapshotter(*where, script.tracked, Cadence(1, 1.0), CheckpointSettings())
        snapshots.take(step)
        snapshots.finish()
        store, key = open_store(self.place), Key(1, step)
        save.begin(store, Lineage(attempt=1, parent=None))
        cells = {part: c for part in OWN if (c := self.arena.find(part, key))}
        for cell in cells.values():
            cell.seal()
        save.save_rank(store, cells, job="job", tier=Tier.SHARED)
        save.commit(store, key, ranks=[0], now=1.0)

    def load(self, script: Script, *, memory: bool) -> int:
        """The step from which a script goes on."""
        empty = Arena.create()
        arena = self.arena if memory else Arena(empty)
        environ = {"HOLDFAST_CHECKPOINT_SHARED": self.place}
        found = bring_in(arena, None, ALONE, script.tracked, 2, environ)
        assert found is not None
        script.tracked.load(found.shared, found.private)
        os.close(empty)
        return found.key.step


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    """Nothing yet."""
    made = Kept(tmp_path)
    yield made
    os.close(made.fd)


@pytest.mark.parametrize("memory", [True, False])
@pytest.mark.parametrize("step", [ADDED_AT - 1, ADDED_AT, ADDED_AT + 1])
@pytest.mark.parametrize("twin", [False, True])
def test_a_group_that_was_added_during_training_comes_back(
    kept: Kept, memory: bool, step: int, twin: bool
) -> None:
    """A KeyError, at each restart. Before the step at which it is added the script adds it."""
    quiet, first, second = Script(twin=twin), Script(twin=twin), Script(twin=twin)
    quiet.train(0, STEPS)
    first.train(0, step)
    kept.keep(first, step)
    assert kept.load(second, memory=memory) == step
    assert len(second.optimizer.param_groups) == (2 if step > ADDED_AT else 1)
    second.train(step, STEPS)
    assert second.outcome() == quiet.outcome()


@pytest.mark.parametrize("step", [ADDED_AT - 1, ADDED_AT])
def test_a_group_that_was_added_in_a_step_that_was_given_up_goes_and_is_added_again(
    kept: Kept, step: int
) -> None:
    """By a process that is kept: it was taken for a checkpoint of another model, and ended jobs."""
    quiet, first = Script(), Script()
    quiet.train(0, STEPS)
    first.train(0, step)
    kept.keep(first, step)
    first.train(step, ADDED_AT + 1)
    first.tracked.same_on(ALONE)
    assert kept.load(first, memory=True) == step
    first.train(step, STEPS)
    assert first.outcome() == quiet.outcome()


@pytest.mark.parametrize("memory", [True, False])
def test_an_optimizer_with_parameters_that_were_in_no_group_is_refused(
    kept: Kept, memory: bool
) -> None:
    """They would be trained no more, or from nothing, and nobody would know."""
    first = Script()
    first.train(0, 2)
    kept.keep(first, 2)
    with pytest.raises(Error) as told:
        kept.load(Script(trunk=True), memory=memory)
    assert told.value.slug == "checkpoint-unusable"


@pytest.mark.parametrize("memory", [True, False])
def test_groups_in_another_order_or_split_otherwise_are_as_they_were(
    kept: Kept, memory: bool
) -> None:
    first = Script(trunk=True)
    first.train(0, 2)
    kept.keep(first, 2)
    second = Script(trunk=True)
    head, trunk = second.optimizer.param_groups
    head["params"], trunk["params"] = trunk["params"][::-1], head["params"]
    second.optimizer.add_param_group({"params": [trunk["params"].pop()], "initial_lr": 0.1})
    assert kept.load(second, memory=memory) == 2
    assert second.outcome() == first.outcome()


def test_a_parameter_of_no_tracked_module_in_an_added_group_is_named(kept: Kept) -> None:
    first = Script()
    loose = nn.Parameter(torch.ones(2))
    first.optimizer.add_param_group({"params": [loose]})
    kept.keep(first, 1)
    for memory in (True, False):
        with pytest.raises(Error, match=r"groups of an optimizer|different model") as told:
            kept.load(Script(), memory=memory)
        assert "no tracked module" in told.value.why

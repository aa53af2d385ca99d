"""Libraries with state dicts of their own: what is kept is all that matters, as plain data.

torchtitan is not installed (it brings fifty packages), and Megatron Core's distributed optimizer
needs a GPU: both are played here by stand-ins with their interfaces. DeepSpeed is the real one, in
test_trainers.py.
"""

import enum
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from holdfast.checkpoint.codec import flatten, unflatten
from holdfast.errors import Error
from holdfast.integrations import torchtitan
from holdfast.integrations.megatron import OptimizerState, ScheduleState
from holdfast.integrations.plain import filled, plain
from holdfast.train import session
from tests.integrations.jobs import own_run


def stored(state: Any) -> Any:
    flat = flatten(state, lambda one: isinstance(one, torch.Tensor), "state")
    return unflatten(flat.plain, [leaf.clone() for leaf in flat.leaves])


class Stage(enum.Enum):
    TWO = 2


class Scaler:
    def __init__(self, scale: float) -> None:
        self.scale, self.window, self.lock = scale, 5, object()


def test_objects_in_a_state_dict_are_kept_by_their_numbers_and_filled_in_again() -> None:
    kept: Any = {"scaler": Scaler(8.0), "stage": Stage.TWO, "parts": (torch.ones(2), [1, None])}
    now: Any = {"scaler": Scaler(1.0), "stage": Stage.TWO, "parts": (torch.zeros(2), [0, None])}
    found = filled(stored(plain(kept)), now)
    assert found["scaler"] is now["scaler"] and found["scaler"].scale == 8.0
    assert found["stage"] is Stage.TWO
    assert type(found["parts"]) is tuple and found["parts"][0].tolist() == [1.0, 1.0]


class MegatronStandIn:
    """With what OptimizerState uses of Megatron Core's DistributedOptimizer: an optimizer of
    PyTorch over the shards in full precision that lie here, and a gradient scaler."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.model = torch.nn.Linear(4, 4, dtype=torch.bfloat16)
        shards = [torch.nn.Parameter(p.detach().float()) for p in self.model.parameters()]
        self.shard_fp32_from_float16_groups = [shards]
        self.optimizer = torch.optim.AdamW(shards, lr=0.1)
        self.grad_scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1)
        self.grad_scaler.scale(torch.ones(1))

    def pairs(self) -> list[tuple[Any, Any]]:
        (shards,) = self.shard_fp32_from_float16_groups
        return list(zip(shards, self.model.parameters(), strict=True))

    def step(self) -> None:
        for master, parameter in self.pairs():
            master.grad = parameter.detach().float().sin()
        self.optimizer.step()
        for master, parameter in self.pairs():
            parameter.data.copy_(master)
        self.grad_scaler.update(2 * self.grad_scaler.get_scale())


def test_a_megatron_optimizer_goes_on_bit_for_bit() -> None:
    first = MegatronStandIn()
    first.step()
    state = stored(OptimizerState(first).state_dict())
    model = stored(dict(first.model.state_dict()))  # tracked by itself
    first.step()
    second = MegatronStandIn()
    second.model.load_state_dict(model)
    stub = SimpleNamespace(optimizer=None, is_stub_optimizer=True)
    OptimizerState(SimpleNamespace(chained_optimizers=[second, stub])).load_state_dict(state)
    second.step()
    for one, other in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert first.grad_scaler.state_dict() == second.grad_scaler.state_dict()


def test_a_megatron_schedule_goes_on_with_its_samples() -> None:
    class Schedule:
        steps = 3

        def state_dict(self) -> dict[str, Any]:
            return {"num_steps": self.steps, "lr_decay_style": "cosine"}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.steps = state["num_steps"]

    counters = SimpleNamespace(iteration=7, consumed_train_samples=56)
    state = stored(ScheduleState(Schedule(), counters).state_dict())
    later, fresh = Schedule(), SimpleNamespace(iteration=0, consumed_train_samples=0)
    later.steps = 0
    ScheduleState(later, fresh).load_state_dict(state)
    assert later.steps == 3 and vars(fresh) == vars(counters)


class TitanStandIn:
    """With torchtitan's loop, and what its Trainer gives its checkpointer: as in 0.2.0 to 0.2.2,
    and as in its repository since, which calls its settings otherwise."""

    def __init__(self, settings: str = "config", steps: int = 5) -> None:
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.AdamW(model.parameters())
        self.model_parts, self.step, self.ntokens_seen = [model], 0, 0
        self.optimizers = SimpleNamespace(optimizers=[optimizer])
        schedule = torch.optim.lr_scheduler.ConstantLR(optimizer)
        self.lr_schedulers = SimpleNamespace(schedulers=[schedule])
        self.dataloader = SimpleNamespace(state_dict=dict, load_state_dict=lambda _state: None)
        self.steps, self.data = steps, 5
        setattr(self, settings, SimpleNamespace(training=SimpleNamespace(steps=steps)))
        self.saved: list[tuple[int, bool]] = []
        self.validated: list[int] = []
        self.checkpointer = SimpleNamespace(
            load=lambda **_: False,
            save=lambda step, last_step: self.saved.append((step, last_step)),
        )
        self.validator = SimpleNamespace(validate=lambda _parts, step: self.validated.append(step))
        self.metrics_processor = SimpleNamespace(log=lambda *_, **__: None)

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step, "ntokens_seen": self.ntokens_seen}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step, self.ntokens_seen = state["step"], state["ntokens_seen"]

    def train(self) -> None:
        self.checkpointer.load(step=-1)
        while self.should_continue_training():
            self.step += 1
            if self.step > self.data:
                break
            self.ntokens_seen += 8
            self.metrics_processor.log(self.step, 0.5, 0.75, 2.0, extra_metrics={})
            self.checkpointer.save(self.step, last_step=self.step == self.steps)
            self.validator.validate(self.model_parts, self.step)

    def should_continue_training(self) -> bool:
        return self.step < self.steps


@pytest.mark.parametrize("settings", ["config", "job_config"])
def test_a_torchtitan_trainer_trains_through_the_loop_of_a_run(
    settings: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_run(monkeypatch)
    trainer = TitanStandIn(settings)
    kept = torchtitan.keep(trainer)
    seen: list[Any] = []
    run = kept.drive.run
    monkeypatch.setattr(run, "log", lambda **numbers: seen.append(numbers))
    plain = run.section

    def section(name: str) -> Any:
        seen.append((name, kept.drive.completed))
        return plain(name)

    monkeypatch.setattr(run, "section", section)
    trainer.train()
    assert trainer.saved == [(1, False), (2, False), (3, False), (4, False), (5, True)]
    assert trainer.validated == [1, 2, 3, 4, 5]
    assert kept.drive.completed == 5
    step = [{"loss": 0.5, "grad_norm": 2.0}, ("save", 1), ("eval", 1), {"tokens": 8}]
    assert seen[4:8] == step, "whoever dies in an evaluation does it again"
    assert len(seen) == 20
    with pytest.raises(Error) as caught:
        torchtitan.keep(TitanStandIn())
    assert "is already in use" in caught.value.why
    assert session.joined()


def test_a_torchtitan_trainer_that_runs_out_of_data_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own_run(monkeypatch)
    trainer = TitanStandIn(steps=9)
    kept = torchtitan.keep(trainer)
    trainer.train()
    assert kept.drive.completed == 5 and kept.drive._steps is None


def test_a_trainer_without_what_is_needed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    own_run(monkeypatch)
    with pytest.raises(Error, match="is not supported by") as caught:
        torchtitan.keep(SimpleNamespace(checkpointer=1))
    assert "model_parts" in caught.value.why
    assert not session.joined()

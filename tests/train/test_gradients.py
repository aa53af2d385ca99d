"""Gradients that are carried over turns of the loop: after a restore every loss is the same, bit by
bit, however a script handles them.

In one process; ranks that have to agree are in `test_recovery`.
"""

import logging
import time
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from holdfast.checkpoint.arena import Arena, StatePart
from holdfast.checkpoint.settings import CheckpointSettings, TierRule
from holdfast.checkpoint.tiers import SnapshotFlag
from holdfast.errors import Error
from holdfast.train import gradients
from tests.more import thinned
from tests.train.alone import TURNS, Job, Script, Turn, adamw


def loss_of(script: Script, x: Tensor) -> Any:
    return script.net(x).square().mean()


sgd = partial(torch.optim.SGD, lr=0.05)


def usual(script: Script, step: int, x: Tensor) -> Any:
    """The form that everybody writes."""
    optimizer = script.optimizers["all"]
    loss = loss_of(script, x)
    (loss / 4).backward()
    if (step + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
    return loss


def zeroed_first(script: Script, step: int, x: Tensor) -> Any:
    optimizer = script.optimizers["all"]
    if step % 3 == 0:
        optimizer.zero_grad()
    loss = loss_of(script, x)
    loss.backward()
    if step % 3 == 2:
        optimizer.step()
    return loss


def zeroed_in_place(script: Script, step: int, x: Tensor) -> Any:
    """What had a gradient once decays for ever, because its gradient is zero and not None."""
    optimizer = script.optimizers["all"]
    loss = loss_of(script, x)
    if step == 1:
        loss = loss + script.net.rare(x).square().mean()
    loss.backward()
    if step % 2 == 1:
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    return loss + sum(p.detach().sum() for p in script.net.rare.parameters())


def steps_left_out(script: Script, step: int, x: Tensor) -> Any:
    """As by a GradScaler that has met an infinity."""
    optimizer = script.optimizers["all"]
    optimizer.zero_grad()
    loss = loss_of(script, x)
    loss.backward()
    if step % 3:
        optimizer.step()
    return loss


def rare_steps(script: Script, step: int, x: Tensor) -> Any:
    """One optimizer steps each turn, another one each fourth with what was summed up."""
    often, rarely = script.optimizers.values()
    loss = loss_of(script, x)
    loss.backward()
    often.step()
    often.zero_grad()
    if step % 4 == 3:
        rarely.step()
        rarely.zero_grad()
    return loss


def closures(script: Script, _: int, x: Tensor) -> Any:
    optimizer = script.optimizers["all"]
    torch.manual_seed(5)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = loss_of(script, x)
        loss.backward()
        return loss

    return optimizer.step(closure)


def not_tracked(script: Script, step: int, x: Tensor) -> Any:
    """Its hooks tell all the same."""
    optimizer = script.optimizers["untracked"]
    loss = loss_of(script, x)
    loss.backward()
    if step % 2:
        optimizer.step()
        optimizer.zero_grad()
    return loss


def left_behind(script: Script, _: int, x: Tensor) -> Any:
    """The second loss leaves gradients in what the first one trains, as a GAN does: but here they
    are never zeroed, and count."""
    one, other = script.optimizers.values()
    loss = loss_of(script, x)
    loss.backward()
    one.step()
    other.zero_grad()
    loss_of(script, x + 1).backward()
    other.step()
    for parameter in script.net.first.parameters():
        assert parameter.grad is not None
        parameter.grad.mul_(0.5)
    return loss


def by_hand(script: Script, step: int, x: Tensor) -> Any:
    loss = loss_of(script, x)
    loss.backward()
    with torch.no_grad():
        for parameter in (p for p in script.net.parameters() if p.grad is not None):
            assert parameter.grad is not None
            if step % 3 == 2:
                parameter.sub_(parameter.grad, alpha=0.05)
            parameter.grad.mul_(0.7)
    return loss


def never_zeroed(script: Script, _: int, x: Tensor) -> Any:
    optimizer = script.optimizers["all"]
    loss = loss_of(script, x)
    loss.backward()
    optimizer.step()
    return loss


OPTIMIZERS: dict[Any, dict[str, Any]] = {
    rare_steps: {"first": adamw, "second": adamw},
    closures: {"all": partial(torch.optim.LBFGS, max_iter=3, lr=0.1)},
    not_tracked: {"untracked": sgd},
    left_behind: {"first": adamw, "second": adamw},
    by_hand: {},
    never_zeroed: {"all": sgd},
}
WAIT = [usual, zeroed_first, zeroed_in_place, steps_left_out, rare_steps, closures, not_tracked]
KEEP = [left_behind, by_hand, never_zeroed]
CASES = thinned([*((turn, 1) for turn in [*WAIT, *KEEP]), (usual, 3)], 2)


def job_of(turn: Turn, every: int = 1, settings: CheckpointSettings | None = None) -> Job:
    return Job(turn, every, settings, OPTIMIZERS.get(turn, {"all": adamw}))


def undisturbed(turn: Turn, every: int = 1) -> dict[int, float]:
    job = job_of(turn, every)
    job.run()
    assert len(job.losses) == TURNS
    return job.losses


@pytest.mark.parametrize(("turn", "every"), CASES)
def test_a_fault_in_any_turn_changes_no_loss(
    monkeypatch: pytest.MonkeyPatch, turn: Turn, every: int
) -> None:
    if turn in KEEP:
        monkeypatch.setattr(gradients, "PATIENCE_S", 0.0)
    calm = undisturbed(turn, every)
    restored = set()
    for until in (1, 4, 6, 9):
        job = job_of(turn, every)
        job.run(until)
        job.run()
        assert job.losses == calm, f"after a fault in turn {until}, from {job.restored[1]}"
        restored.add(job.restored[1])
    assert len(restored) > 2, "it goes on from snapshots"


def test_snapshots_wait_for_the_turn_in_which_the_optimizer_steps() -> None:
    job = job_of(usual)
    job.run()
    assert job.whole == [4, 8, 12]
    job = job_of(usual, every=5)
    job.run()
    assert job.whole == [4, 12], "due after 1, then 9: the next chance is 12"


def test_gradients_are_kept_where_no_turn_ends_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 100.0
    monkeypatch.setattr("holdfast.train.gradients.time.monotonic", lambda: now)
    job = job_of(by_hand)
    with caplog.at_level(logging.WARNING):
        for step in job.loop():
            if step == 3:
                assert job.whole == [], "they wait first"
                now += gradients.PATIENCE_S
    assert job.whole == list(range(4, 13)), "and then no more"
    assert caplog.text.count("snapshots include them") == 1


def test_a_node_that_goes_does_not_wait_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of(by_hand, settings=CheckpointSettings(shared=TierRule(every_s=1e9)))
    job.storage_page.warn(time.monotonic() + 1e6)
    now = time.monotonic()
    monkeypatch.setattr("holdfast.train.gradients.time.monotonic", lambda: now)
    for step in job.loop():
        if step == 4:
            assert job.snapshots.loop.stopping
            now += gradients.URGENT_PATIENCE_S
        if step == 6:
            break
    assert job.whole == [5], "the others wait again"
    header = next(h for c in Arena(job.fd).cells(StatePart.PRIVATE) if (h := c.header()))
    assert SnapshotFlag.URGENT & header.flags


def test_a_named_checkpoint_waits_for_the_optimizer_and_keeps_its_name() -> None:
    job = job_of(usual, every=100, settings=CheckpointSettings(shared=TierRule(every_s=1e9)))
    for step in job.loop():
        if step == 5:
            job.snapshots.requests.ask("golden")
    assert job.whole == [4, 8, 12]


def test_the_last_step_is_snapshotted_with_what_is_pending() -> None:
    job = job_of(usual)
    assert [*job.loop(total=6)][-1] == 5
    assert job.whole == [4, 6]
    job.run()
    assert job.restored == [0, 6] and job.losses == undisturbed(usual)


def test_nothing_is_snapshotted_where_gradients_cannot_be_kept(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And where there is no memory for them: a wrong snapshot is worse than none, a dead job
    too."""
    monkeypatch.setattr(gradients, "PATIENCE_S", 0.0)
    job = job_of(by_hand)
    with caplog.at_level(logging.WARNING):
        for step in job.loop():
            if step == 0:
                monkeypatch.setattr(Arena, "reserve", _refuse)
            if step == 8:
                break
    assert job.whole == []
    assert caplog.text.count("no snapshot can be taken") == 1


def _refuse(*_: object, **__: object) -> None:
    raise Error("snapshot-too-large", "no memory", why="a test", help="none")


def test_a_snapshot_that_lacks_what_is_added_to_later_is_given_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        job = job_of(never_zeroed)
        for step in job.loop():
            if step == 1:
                break
    assert job.whole == [1]
    assert "gradients are accumulated onto those that the optimizer has" in caplog.text
    assert job.snapshots.capture.gradients.spoiled

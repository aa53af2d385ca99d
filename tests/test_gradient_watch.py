"""Gradients of a script that tells no numbers: NaN is found at its step, and nothing else is."""

import gc
import math
import os
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

from holdfast import gradient_watch, optimizer_steps
from holdfast.detection.numerics import LASTING_COUNT
from holdfast.events import Broken, Quantity
from holdfast.gradient_watch import ALWAYS, LARGE, Allowance, GradientWatch
from holdfast.messages import WorkerReport
from holdfast.page import Page

BAD_STEP = 7
NAN, INF = math.nan, math.inf


class Watched:
    """A page, and the gradients that are watched for it."""

    def __init__(self) -> None:
        self.fd = Page.create()
        self.page = Page(self.fd)
        self.watch = GradientWatch(self.page)
        self.steps = 0

    @property
    def report(self) -> WorkerReport:
        """As the agent reads it."""
        return self.page.report(0, 1, time.monotonic())

    @property
    def broke(self) -> tuple[int, Quantity, str] | None:
        """The first step whose numbers were not finite, and what was."""
        found: Broken | None = self.report.broke
        return None if found is None else (found.step, found.what, found.value)

    def stepped(self, optimizer: Any) -> None:
        """A step of this optimizer is over."""
        self.steps += 1
        self.watch.stepped(optimizer, self.steps, time.monotonic())


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    """With nothing left out for being too expensive."""
    monkeypatch.setattr(gradient_watch.Allowance, "is_due", lambda *_: True)
    found = Watched()
    yield found
    found.page.close()
    os.close(found.fd)


def model() -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))


def train(
    watched: Watched,
    optimizer: Any,
    loss: Callable[[float], Any],
    steps: int = 12,
    bad: float = NAN,
) -> None:
    """`loss` of data that are 1, and once are not."""
    for step in range(1, steps + 1):

        def closure(value: float = bad if step == BAD_STEP else 1.0) -> Any:
            optimizer.zero_grad()
            now = loss(value)
            now.backward()
            return now

        if isinstance(optimizer, torch.optim.LBFGS):
            optimizer.step(closure)  # type: ignore[no-untyped-call]
        else:
            closure()
            optimizer.step()
        watched.stepped(optimizer)


# ── what is found ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1),
        lambda p: torch.optim.AdamW(p, foreach=True),
        lambda p: torch.optim.AdamW(p, fused=True),
        lambda p: torch.optim.LBFGS(p, max_iter=3),
        lambda p: torch.optim.Adagrad([{"params": [one]} for one in p]),
    ],
    ids=["plain", "foreach", "fused", "closure", "groups"],
)
@pytest.mark.parametrize("bad", [NAN, INF])
def test_data_that_are_no_numbers_are_found_at_their_step(
    watched: Watched, make: Callable[[Any], Any], bad: float
) -> None:
    net = model()
    train(watched, make(net.parameters()), lambda x: net(torch.full((2, 4), x)).mean(), bad=bad)
    assert watched.broke is not None
    assert watched.broke[:2] == (BAD_STEP, Quantity.GRAD_NORM)
    assert watched.broke[2] in ("nan", "inf")


def test_what_is_not_finite_elsewhere_is_found_a_step_later(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Part of one gradient, whatever the loss was."""
    monkeypatch.setattr(gradient_watch, "FEW", 2)
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    elsewhere: Any = next(iter(net.parameters()))

    def loss(x: float) -> Any:
        if math.isnan(x):
            elsewhere.register_hook(lambda grad: grad.index_fill(0, torch.tensor(0), NAN))
        return net(torch.ones(2, 4)).square().mean()

    train(watched, optimizer, loss)
    assert watched.broke == (BAD_STEP + 1, Quantity.GRAD_NORM, "nan")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64])
def test_numbers_of_any_kind_are_looked_at(watched: Watched, dtype: torch.dtype) -> None:
    """And those of half precision make no norm overflow."""
    p = torch.nn.Parameter(torch.ones(8, dtype=dtype))
    optimizer = torch.optim.SGD([p], lr=0.0)
    large = 40_000.0 if dtype is torch.float16 else 1e6
    for value in (large, NAN):
        p.grad = torch.full_like(p, value)
        if math.isnan(value):
            p.data.fill_(NAN)
        watched.stepped(optimizer)
        if value == large:
            watched.stepped(optimizer)
            watched.stepped(optimizer)
            watched.stepped(optimizer)
            assert watched.report.grad_norm == pytest.approx(large * 8**0.5, rel=0.01)
            assert watched.broke is None
    assert watched.broke == (5, Quantity.GRAD_NORM, "nan")


def test_the_norm_is_that_of_all_gradients_together(watched: Watched) -> None:
    net, double = model(), torch.nn.Linear(2, 2, dtype=torch.float64)
    parameters = [*net.parameters(), *double.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)

    def loss(_: float) -> Any:
        return net(torch.ones(2, 4)).mean() + double(torch.ones(1, 2).double()).mean()

    train(watched, optimizer, loss)
    expected = float(
        torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    )
    assert watched.report.grad_norm == pytest.approx(expected)
    assert watched.broke is None and watched.report.loss is None


def test_a_gradient_that_rises_far_above_the_usual_is_noted(watched: Watched) -> None:
    p = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([p], lr=0.0)
    for step in range(80):
        p.grad = torch.full_like(p, 100.0 if step == 75 else 1.0 + step % 3 / 10)
        watched.stepped(optimizer)
    spike = watched.report.spike
    assert spike is not None
    assert (spike.step, spike.what, spike.value) == (76, Quantity.GRAD_NORM, 200.0)
    assert watched.broke is None


def test_sparse_gradients_are_looked_at_as_they_are(watched: Watched) -> None:
    table = torch.nn.Embedding(10_000, 4, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    wanted = torch.tensor([1, 9_999, 9_999])
    train(watched, optimizer, lambda x: (table(wanted) * x).sum())
    assert watched.broke == (BAD_STEP, Quantity.GRAD_NORM, "nan")


def test_where_the_output_tells_steps_the_step_is_that(watched: Watched) -> None:
    """It is the same one in each attempt."""
    watched.page.step_printed(4_000)
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    train(watched, optimizer, lambda x: net(torch.full((2, 4), x)).mean())
    assert watched.broke == (4_000, Quantity.GRAD_NORM, "nan")


def test_a_shard_is_looked_at_without_any_communication(watched: Watched) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import debug

    dist.init_process_group("gloo", store=vars(dist)["HashStore"](), rank=0, world_size=1)
    try:
        net = torch.nn.Linear(4, 4)
        fully_shard(net, mesh=init_device_mesh("cpu", (1,)))
        optimizer = torch.optim.AdamW(net.parameters())
        for step in range(1, 9):
            optimizer.zero_grad()
            net(torch.full((2, 4), NAN if step == BAD_STEP else 1.0)).sum().backward()
            optimizer.step()
            said: Any = vars(debug)["CommDebugMode"]()
            with said:
                watched.stepped(optimizer)
            assert said.get_total_counts() == 0
            assert (watched.broke is None) == (step < BAD_STEP)
    finally:
        dist.destroy_process_group()
    assert watched.broke == (BAD_STEP, Quantity.GRAD_NORM, "nan")
    assert watched.report.grad_norm is not None


# ── what is none ──────────────────────────────────────────────────────────────────────────────


class Careful(torch.optim.SGD):
    """Leaves out what it cannot use."""

    def step(self, closure: Any = None) -> Any:
        """Only with finite gradients."""
        gradients = [p.grad for group in self.param_groups for p in group["params"]]
        finite = all(bool(torch.isfinite(one).all()) for one in gradients)
        return super().step(closure) if finite else None


def test_steps_that_an_optimizer_leaves_out_are_no_fault_unless_they_are_all(
    watched: Watched,
) -> None:
    p = torch.nn.Parameter(torch.ones(4))
    optimizer = Careful([p], lr=0.1)
    for step in range(100):
        p.grad = torch.full_like(p, INF if step % LASTING_COUNT else 1.0)
        optimizer.step()
        watched.stepped(optimizer)
    assert watched.report.broke is None and watched.report.grad_norm == INF
    for _ in range(LASTING_COUNT):
        optimizer.step()
        watched.stepped(optimizer)
    assert watched.broke is not None and watched.broke[1:] == (Quantity.GRAD_NORM, "inf")


@pytest.mark.parametrize("fused", [True, False])
def test_a_scaler_that_skips_a_step_is_no_fault(watched: Watched, fused: bool) -> None:
    """A fused optimizer is called in such a step, too, and leaves it out by itself."""
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, growth_interval=3)
    hook = optimizer.register_step_post_hook(lambda *_: watched.stepped(optimizer))
    for step in range(30):
        optimizer.zero_grad()
        x = torch.full((2, 4), INF if step % 10 == 9 else 1.0)
        scaler.scale(net(x).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
    hook.remove()
    assert watched.steps == (30 if fused else 27)
    assert watched.broke is None
    assert all(bool(torch.isfinite(p).all()) for p in net.parameters())


def test_a_parameter_that_is_infinite_by_intent_is_no_fault(watched: Watched) -> None:
    mask = torch.nn.Parameter(torch.tensor([0.0, -INF]))
    optimizer = torch.optim.Adam([mask], lr=0.1)
    train(watched, optimizer, lambda _: (torch.softmax(mask, 0) * torch.tensor([1.0, 2.0])).sum())
    assert bool(torch.isinf(mask[1])) and watched.broke is None


def no_gradients() -> list[Any]:
    return [torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(()))]


def nowhere() -> list[Any]:
    p = torch.nn.Parameter(torch.ones(3, device="meta"))
    p.grad = torch.ones(3, device="meta")
    return [p]


def nothing_here() -> list[Any]:
    p = torch.nn.Parameter(torch.ones(0, 3))
    p.grad = torch.ones(0, 3)
    return [p]


@pytest.mark.parametrize("make", [no_gradients, nowhere, nothing_here])
def test_where_there_is_nothing_to_look_at_nothing_is_said(
    watched: Watched, make: Callable[[], list[Any]]
) -> None:
    optimizer = torch.optim.SGD(make(), lr=0.1)
    for _ in range(5):
        watched.stepped(optimizer)
    assert watched.broke is None and watched.report.grad_norm is None


def test_a_part_that_is_frozen_later_is_not_missed(watched: Watched) -> None:
    """Nor is one that has had no gradient at first."""
    first, second = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3, 3))
    optimizer = torch.optim.SGD([first, second], lr=0.1)
    for step in range(1, 13):
        optimizer.zero_grad()
        active = first if step < 5 else second
        loss: Any = (active * (NAN if step == BAD_STEP else 1.0)).sum()
        loss.backward()
        optimizer.step()
        watched.stepped(optimizer)
    assert watched.broke == (BAD_STEP, Quantity.GRAD_NORM, "nan")


def test_of_a_large_tensor_a_part_is_looked_at() -> None:
    for shape in ((LARGE * 3,), (50, 70, 90), (2, LARGE * 2), (3,), ()):
        tensor = torch.rand(shape)
        part = gradient_watch._part(tensor)
        assert part.numel() == min(LARGE, tensor.numel()) or 0 < part.numel() < LARGE
        assert part.data_ptr() >= tensor.data_ptr(), "it is no copy"
        assert part.flatten()[-1] == tensor.flatten()[-1]


def trained(watched: Watched, bad: float) -> list[Callable[[], Any]]:
    """Weak references to the parameters of a model that is gone afterwards."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    train(watched, optimizer, lambda x: net(torch.full((2, 4), x)).mean(), bad=bad)
    return [weakref.ref(p) for p in net.parameters()]


def test_models_of_the_script_are_not_kept(watched: Watched) -> None:
    gone = trained(watched, 1.0)
    gc.collect()
    assert [one() for one in gone] == [None] * 4
    trained(watched, NAN)
    assert watched.broke == (12 + BAD_STEP, Quantity.GRAD_NORM, "nan"), "the next one is watched"


def test_of_two_phases_the_second_is_watched_though_the_first_is_still_there(
    watched: Watched,
) -> None:
    nets = [model(), model()]
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in nets]
    for net, optimizer, bad in zip(nets, optimizers, (1.0, NAN), strict=True):
        train(
            watched, optimizer, partial(lambda n, x: n(torch.full((2, 4), x)).mean(), net), bad=bad
        )
    assert watched.broke == (12 + BAD_STEP, Quantity.GRAD_NORM, "nan")


# ── a GPU is not waited for ───────────────────────────────────────────────────────────────────


class Event:
    """One of a GPU that comes to it when it likes."""

    def __init__(self) -> None:
        self.come = False

    def query(self) -> bool:
        """Whether it has."""
        return self.come

    def elapsed_time(self, _end: object) -> float:
        """In milliseconds."""
        return 2_000.0


def test_numbers_that_are_on_their_way_are_taken_when_they_have_come(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the step that they are of; meanwhile nothing else is begun."""
    made: list[Event] = []

    def event(_self: object, _device: object) -> Event:
        made.append(Event())
        return made[-1]

    monkeypatch.setattr(GradientWatch, "_event", event)
    p = torch.nn.Parameter(torch.full((3,), NAN))
    p.grad = torch.full((3,), NAN)
    optimizer = torch.optim.SGD([p], lr=0.0)
    for _ in range(5):
        watched.stepped(optimizer)
    assert len(made) == 2 and watched.report.broke is None
    p.grad.fill_(0.0)
    made[-1].come = True
    watched.stepped(optimizer)
    assert watched.broke == (1, Quantity.GRAD_NORM, "nan")
    assert len(made) == 4, "the next look has begun"
    assert watched.watch.look.cost_s == 2.0, "what it took there counts, too"


def test_what_is_computed_there_needs_no_number_here(watched: Watched) -> None:
    """Where there are no numbers at all, whatever asks for one fails."""
    parameters = []
    for shape in ((3,), (4, 4), ()):
        p = torch.nn.Parameter(torch.ones(shape, device="meta"))
        p.grad = torch.ones(shape, device="meta")
        parameters.append(p)
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    norms = watched.watch._total(gradient_watch._gradients(optimizer), torch.device("meta"))
    assert [norm.shape for norm in norms] == [()]
    with pytest.raises((RuntimeError, NotImplementedError)):
        norms[0].item()


# ── what it costs ─────────────────────────────────────────────────────────────────────────────


def times(allowance: Allowance, costs: dict[float, float], until: float) -> list[float]:
    """When it was done, in a script with 100 steps a second; `costs` from these times on."""
    done = []
    for number in range(round(until * 100)):
        now = number / 100
        if allowance.is_due(now):
            done.append(now)
            allowance.spent(now, next(c for since, c in reversed(costs.items()) if now >= since))
    return done


def test_a_share_of_the_time_is_spent_and_no_more() -> None:
    done = times(Allowance(0.001), {0.0: 0.001}, 60.0)
    assert done[: ALWAYS + 1] == [0.0, 0.01, 0.02, 1.02]
    assert len(done) == ALWAYS + 59
    each = times(Allowance(0.001), {0.0: 0.000_005}, 10.0)
    assert len(each) == 1000, "what costs little is done in each step"


def test_one_that_was_disturbed_does_not_count_for_long() -> None:
    allowance = Allowance(0.001)
    first = times(allowance, {0.0: 5.0, 0.005: 0.001}, 5.0)
    assert first[ALWAYS] == 1.02, "the first look at anything is slow"
    allowance.spent(5.0, 60.0)
    assert allowance.is_due(7.5) and not allowance.is_due(6.5)
    for number in range(5):
        allowance.spent(10.0 + number, 0.004)
    assert allowance.cost_s == 0.004, "what has become more expensive"


def test_a_look_is_left_out_where_steps_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    found, looks = Watched(), []
    plain = GradientWatch._take
    monkeypatch.setattr(
        GradientWatch,
        "_take",
        lambda *given: looks.append(1) or plain(*given),  # type: ignore[func-returns-value]
    )
    p = torch.nn.Parameter(torch.ones(3))
    p.grad = torch.ones(3)
    optimizer = torch.optim.SGD([p], lr=0.1)
    for step in range(1000):
        found.watch.stepped(optimizer, step, step * 1e-9)
    found.page.close()
    os.close(found.fd)
    assert len(looks) == 2 * ALWAYS


# ── and its place ─────────────────────────────────────────────────────────────────────────────


def test_an_error_in_here_ends_the_looking_and_neither_counting_nor_training(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise NotImplementedError("no norm of these")

    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    monkeypatch.setattr(GradientWatch, "_norms", broken)
    optimizer_steps.observe(watched.page)
    try:
        for _ in range(4):
            net(torch.ones(2, 4)).mean().backward()
            optimizer.step()
    finally:
        found = watched.report.optimizer_steps
        optimizer_steps.leave_to_the_script()
    lines = capsys.readouterr().err.splitlines()
    said = "holdfast: gradients are not checked any more: NotImplementedError: no norm of these"
    assert found == 4 and [line for line in lines if "any more" in line] == [said]


def test_what_a_script_that_reports_by_itself_does_not_tell_is_forgotten(watched: Watched) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    optimizer_steps.observe(watched.page)
    for _ in range(5):
        net(torch.ones(2, 4)).mean().backward()
        optimizer.step()
    assert watched.report.grad_norm is not None
    optimizer_steps.leave_to_the_script()
    assert watched.report.grad_norm is None

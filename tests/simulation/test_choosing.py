"""The referee of choices: what is taken would do, is the cheapest, and is what is ordered."""

import pytest

from holdfast.actions import AnyAction, EndJob, Entry, Fence, Outcome
from holdfast.events import AttemptStopped, ControllerResumed
from holdfast.simulation.choosing import judged
from holdfast.status import Alternative, Choice

GAVE_UP = EndJob(outcome=Outcome.GAVE_UP, reason="no node is left")
FENCE = Fence(node="n1", reason="its GPU is lost", blamed=True)


def choice(step: str, cause: str = "device-error", **costs: float) -> Choice:
    """The steps with a cost would do."""
    steps = [(name.replace("_", "-"), cost, True) for name, cost in costs.items()]
    weighed = tuple(
        Alternative(step=name, cost_s=cost, sufficient=would_do, why="so")
        for name, cost, would_do in [*steps, ("wait", 0.0, False)]
    )
    return Choice(at=0.0, about="n1", cause=cause, step=step, reason="so", alternatives=weighed)


@pytest.mark.parametrize(
    ("made", "orders", "how"),
    [
        (choice("restart", restart=1.0, replace=2.0), (), ""),
        (choice("replace", restart=1.0, replace=2.0), (FENCE,), "it costs 2 s, restart 1 s"),
        (choice("wait", restart=1.0), (), "not among the sufficient steps"),
        (choice("replace", "worker-exception", replace=2.0), (), "no machine is to blame"),
        (choice("replace", replace=2.0), (FENCE,), ""),
        (choice("restart", restart=2.0), (FENCE,), "n1 is left and nobody chose that"),
        (choice("give-up", give_up=3600.0), (GAVE_UP,), ""),
        (choice("give-up", give_up=3600.0), (), "it was to end and goes on"),
        (choice("restart", restart=2.0), (GAVE_UP,), "the job ends and nobody chose that"),
    ],
)
def test_what_is_chosen_would_do_is_the_cheapest_and_is_what_is_ordered(
    made: Choice, orders: tuple[AnyAction, ...], how: str
) -> None:
    event = AttemptStopped(attempt=1, store=None)
    found = judged(Entry(seq=1, at=0.0, event=event, actions=orders, choices=(made,)))
    assert how in found and bool(found) == bool(how)


def test_a_controller_that_comes_back_repeats_what_was_chosen_before() -> None:
    assert not judged(Entry(1, 0.0, ControllerResumed(existing=()), (GAVE_UP,)))

"""For how long workers that can be kept may finish the step that is discarded, and what is told.

The whole job waits for that, so it follows from what is known of this job: a step as it has been
so far, and some more, because one step is slower than another, and `recovery.restart_grace_s` at
least. A step that takes longer than is worth waiting for is not waited for at all: to wait for a
part of it would cost that time and keep nobody.
"""

from holdfast.controller.state import State
from holdfast.counts import count
from holdfast.events import AttemptStopped

LEEWAY = 1.5  # times a step
MOST_S = 10.0  # that a step may take, unless new processes take longer than that to train


def park_s(state: State) -> float:
    """Seconds from the order on; 0: all are replaced."""
    step_s, least_s = state.times.step_s or 0.0, state.limits.restart_grace_s
    return max(LEEWAY * step_s, least_s) if step_s <= max(_most_s(state), least_s) else 0.0


def _most_s(state: State) -> float:
    """How long a step may be that is waited for."""
    start_s, step_s = state.times.fresh_s or 0.0, state.times.step_s or 0.0
    return max(MOST_S, start_s - step_s)


def replaced(state: State, stopped: AttemptStopped) -> str:
    """Why workers that could have been kept were not; empty if none was wanted, or all were."""
    order = state.stop
    if order is None or order.park_s is None or not stopped.unkept:
        return ""
    who = count(stopped.unkept, "worker")
    if order.park_s > 0:
        return f"{who} did not reach the end of the step within {order.park_s:.3g} s"
    longest_s, step_s = _most_s(state), state.times.step_s or 0.0
    return (
        f"{who} could be kept, but a step takes {step_s:.3g} s, and at most {longest_s:.3g} s are "
        "waited for; recovery.restart_grace_s above the time of a step changes that"
    )

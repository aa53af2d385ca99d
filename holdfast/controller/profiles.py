"""Steps that have become slow are profiled once, if the job says so; nothing else follows.

A profile costs the steps that it looks at, so there is at most one in an attempt and one an hour,
whoever was the controller in between. What it says is a note, which `holdfast why`, `status` and
the dashboard show. Where no rank is a straggler, it may be the network: links are not measured
beside training, so that is done where machines may be checked, once this attempt has ended.
"""

from holdfast.actions import AnyAction, ProfileSteps
from holdfast.controller.phases import Phase
from holdfast.controller.state import State
from holdfast.profiles import StepsProfiled, StepsSlowed

EVERY_S = 3600.0


def heard(state: State, event: StepsSlowed | StepsProfiled) -> list[AnyAction]:
    """News of the speed of steps."""
    return _slowed(state, event) if isinstance(event, StepsSlowed) else _profiled(state, event)


def _slowed(state: State, event: StepsSlowed) -> list[AnyAction]:
    """They take longer than they used to."""
    if event.attempt != state.attempt or state.phase is not Phase.RUNNING:
        return []
    told = (
        f"steps have become {event.slower:.0%} slower than usual "
        f"({event.step_s:.3g} s each, {event.usual_s:.3g} s before)"
    )
    state.note(event.step, 0, told)
    state.slowed = 0 if state.stragglers else state.attempt
    last = state.profiled
    if last is not None and (last[0] == state.attempt or state.now - last[1] < EVERY_S):
        return []
    state.profiled, state.profiling = (state.attempt, state.now), event.step
    return [ProfileSteps(attempt=state.attempt, step=event.step, reason=told)]


def _profiled(state: State, event: StepsProfiled) -> list[AnyAction]:
    """The answer to that; people decide."""
    state.profiling = 0
    if event.attempt == state.attempt:
        state.note(event.step, event.rank, event.told)
    return []


def resumed(state: State) -> None:
    """Who waited for the answer was the previous controller."""
    step, state.profiling = state.profiling, 0
    if step and state.profiled is not None and state.profiled[0] == state.attempt:
        state.note(step, 0, "they could not be profiled: the controller was restarted")

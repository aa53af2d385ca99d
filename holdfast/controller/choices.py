"""What the ladder is asked, and what it has answered.

The situation is read off the state here, and nowhere else; what is chosen is kept with all that was
weighed: in the line of the journal, and in the incident that it was chosen for.
"""

import msgspec

from holdfast.controller import conditions, repetitions, skipping
from holdfast.controller.policies import ladder
from holdfast.controller.policies.situation import (
    History,
    Means,
    Prices,
    Rung,
    Situation,
    Trouble,
    Weighed,
)
from holdfast.controller.state import IncidentRecord, Node, State
from holdfast.status import Alternative, Choice

KEPT = 64  # newest incidents that keep what else was weighed; the journal has it of all
KEPT_EACH = 16  # choices of one incident

NO_HISTORY = History()


def choose(
    state: State, trouble: Trouble, history: History = NO_HISTORY, older: int | None = None
) -> ladder.Chosen:
    """What to do next about this."""
    return ladder.choose(situation(state, trouble, history, older))


def situation(
    state: State, trouble: Trouble, history: History = NO_HISTORY, older: int | None = None
) -> Situation:
    """Everything that the choice rests on; `older` is a checkpoint that could be gone back to."""
    restore = older if trouble.bad_step is None else trouble.bad_step - 1
    return Situation(
        trouble=trouble,
        history=history,
        means=_means(state, older, trouble.node),
        prices=_prices(state, restore),
    )


def _means(state: State, older: int | None, blamed: str) -> Means:
    limits = state.limits
    named = next((n for n in state.nodes.values() if blamed and n.name == blamed), None)
    held = conditions.held(state, named)
    return Means(
        spares=conditions.sound_spares(state),
        cold=conditions.cold_spares(state),
        waiting=len(state.spares),
        vacant=state.size - len(state.ranks),
        size=state.size,
        fewest=limits.fewest,
        target=state.target,
        older=older,
        replace_after=limits.replace_after,
        held=held,
        held_s=conditions.held_s(state, named) if held else 0.0,
        skips=skipping.left(state),
        skipped=skipping.count(state),
        checks=bool(limits.checks),
        repeats=repetitions.wanted(state) is not None,
        stragglers=limits.stragglers == "replace",
        max_restarts=limits.max_restarts,
        exact=limits.exact,
        window_s=limits.window_s,
        node_wait_s=limits.node_wait_s,
        replicas=limits.replicas and state.attempt > 0,  # who has not come yet is waited for
        nodes_each=limits.nodes_each,
    )


def _prices(state: State, restore: int | None) -> Prices:
    sizing, times, assumed = state.sizing, state.times, Prices()
    start_s = times.restart_s or sizing.start_s or assumed.start_s
    since = sizing.changed_at
    return Prices(
        stop_s=sizing.stop_s or 0.0,
        start_s=start_s,
        move_s=times.move_s or start_s,
        arrival_s=assumed.arrival_s if sizing.arrival_s is None else sizing.arrival_s,
        expected_s=_expected_s(state),
        waited_s=0.0 if sizing.short_since is None else state.now - sizing.short_since,
        since_change_s=None if since is None else state.now - since,
        change_s=change_s(state),
        step_s=assumed.step_s if times.step_s is None else times.step_s,
        redone=state.incidents[-2].steps_lost if len(state.incidents) > 1 else assumed.redone,
        behind=max(0, (state.max_step or 0) - restore) if restore is not None else 0,
    )


def change_s(state: State) -> float:
    """What a change of the size costs: to stop an attempt, and until the next one trains."""
    sizing = state.sizing
    start_s = Prices().change_s if sizing.start_s is None else sizing.start_s
    return (sizing.stop_s or 0.0) + start_s


def _expected_s(state: State) -> float | None:
    """How long the missing nodes will take, as nodes have taken before. None: nobody knows."""
    sizing = state.sizing
    if sizing.arrival_s is None or sizing.asked_at is None:
        return None
    left_s = sizing.asked_at + sizing.arrival_s - state.now
    return left_s if left_s > 0 else None  # they are late


def record(state: State, chosen: ladder.Chosen, trouble: Trouble, *, incident: bool = True) -> None:
    """Keep what was chosen: in the journal, and once for the same thing in the incident."""
    about = trouble.node or f"attempt {state.attempt}"
    choice = Choice(
        at=state.now,
        about=about,
        cause=trouble.cause,
        step=chosen.rung,
        reason=chosen.reason,
        alternatives=tuple(_alternative(one) for one in chosen.weighed),
    )
    known = state.open_incident if incident else None
    state.choices.append(choice)
    if known is not None:
        _keep(known, choice)
        _forget_old(state)


def _alternative(one: Weighed) -> Alternative:
    return Alternative(
        step=one.rung,
        cost_s=round(one.cost_s, 3),
        sufficient=not one.against,
        why=one.against or one.reason,
    )


def _keep(incident: IncidentRecord, choice: Choice) -> None:
    last = incident.choices[-1] if incident.choices else None
    if last is None or (last.step, last.about) != (choice.step, choice.about):
        incident.choices = [*incident.choices, choice][-KEPT_EACH:]


def _forget_old(state: State) -> None:
    for incident in state.incidents[-KEPT - 1 : -KEPT]:
        incident.choices = [
            msgspec.structs.replace(choice, alternatives=()) for choice in incident.choices
        ]


def waits(state: State) -> bool:
    """Whether to wait is what was chosen last in this incident."""
    known = state.open_incident
    return known is not None and bool(known.choices) and known.choices[-1].step == Rung.WAIT


def of_fault(state: State, node: Node, *, trains: bool) -> Trouble:
    """A member has a fault that will not pass by itself."""
    said = f"{node.name}: {conditions.faults(state, node.node)[0].detail}"
    cause = conditions.CAUSE
    return Trouble(cause=cause, summary=said, node=node.name, faulty=True, trains=trains)


def freed_s(state: State) -> float:
    """Until the first of the restarts does not count any more."""
    if not state.restarts:
        return 0.0
    return state.restarts[0] + state.limits.window_s - state.now

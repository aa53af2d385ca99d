"""The life of an attempt: start it, stop it, decide what comes after."""

import msgspec

from holdfast.actions import (
    AnyAction,
    Diagnose,
    EndJob,
    Fence,
    Outcome,
    StartAttempt,
    StopAttempt,
)
from holdfast.controller import (
    checkpoints,
    conditions,
    incidents,
    nodes,
    numerics,
    sizes,
    versions,
)
from holdfast.controller.phases import FINAL, Phase
from holdfast.controller.policies import poison, replace, restart
from holdfast.controller.state import Failure, Node, State
from holdfast.events import Diagnosed, Keeps, Store

ROUNDING_S = 0.001  # of sums of seconds since the epoch


def try_start(state: State) -> list[AnyAction]:
    """Start the next attempt if every node rank is taken and no back-off runs; else wait."""
    if state.phase is not Phase.WAITING:
        return []
    sizes.settle(state)
    actions = nodes.fill_ranks(state)
    for action in actions:
        incidents.note(state, "AssignRank", action.reason)
    if len(state.ranks) < state.size:
        actions += _wait_for_nodes(state)
        return [*actions, *try_start(state)] if sizes.shrinks(state) else actions
    store = state.nodes[state.ranks[0]].store
    if store is None:  # its forkserver is coming back; NodeReady follows
        state.why = f"{state.nodes[state.ranks[0]].name} opens a rendezvous store"
        state.wait_deadline = state.wait_deadline or state.now + state.limits.node_wait_s
        return actions
    state.wait_deadline = None
    if state.start_deadline is not None and state.now < state.start_deadline:
        return actions
    return [*actions, _start(state, store)]


def _wait_for_nodes(state: State) -> list[AnyAction]:
    count = nodes.missing(state)
    state.why = f"{count} more node{'s' if count != 1 else ''} needed to start"
    if state.wait_deadline is None:
        state.wait_deadline = state.now + state.limits.node_wait_s
    return nodes.top_up(state, state.why)


def _start(state: State, store: Store) -> StartAttempt:
    taken = max(0, state.known_attempt - state.attempt)  # by attempts of an earlier journal
    state.earlier_attempts += taken
    state.attempt += taken + 1
    first = state.start is None and not state.incidents
    why = "first attempt" if first else f"restart after: {_last_cause(state)}"
    state.move(Phase.STARTING, why)
    versions.begin(state)
    state.start = StartAttempt(
        attempt=state.attempt,
        node_count=state.size,
        workers_per_node=state.workers_per_node,
        store=store,
        redo_until=state.max_step or 0,
        restarts=state.attempt - 1 - state.earlier_attempts,
        restore_below=state.restore_below,
        committed=checkpoints.outliving(state),
        version=state.version,
        reason=why,
    )
    state.nodes[state.ranks[0]].store = None  # a store serves one attempt only
    state.attempt_started_at, state.progress_mark = state.now, state.max_step
    state.start_deadline = state.leave_deadline = state.quiet_deadline = None
    state.milestones, state.finished, state.deaths = [], set(), []
    state.hang, state.standstill, state.stragglers = None, "", ()
    state.restored = state.reached = state.bad_step = state.corrupt_step = None
    state.stopped = False
    incidents.note(state, "StartAttempt", why)
    return state.start


def _last_cause(state: State) -> str:
    return state.incidents[-1].summary if state.incidents else "nodes were lost before the start"


def stop(
    state: State,
    phase: Phase,
    why: str,
    grace_s: float,
    *,
    save: bool = False,
    keeps: Keeps = "",
    look: bool = False,
) -> list[AnyAction]:
    """Order every member to end this attempt's workers, and wait until that is known."""
    state.move(phase, why)
    state.stopped = False
    state.leave_deadline = state.quiet_deadline = state.sizing.grow_deadline = None
    state.sizing.stop_at = state.now
    incidents.note(state, "StopAttempt", why)
    return [
        StopAttempt(
            attempt=state.attempt, grace_s=grace_s, save=save, keeps=keeps, look=look, reason=why
        )
    ]


def overtaken(state: State, attempt: int) -> list[AnyAction]:
    """The lines that ordered the attempts up to this one are lost: stop whatever is left of them.
    The order that is known is none any more."""
    lost = attempt - state.attempt
    state.earlier_attempts += lost
    state.attempt, state.start, state.stopped = attempt, None, False
    state.deaths, state.finished, state.hang = [], set(), None
    nodes.void_stores(state)
    why = f"orders up to attempt {attempt} were lost with a controller"
    if state.phase is Phase.CLOSING:
        return [StopAttempt(attempt=attempt, grace_s=0.0, reason=state.why)]
    incidents.open_for_lost_orders(state, why)
    if state.phase is not Phase.RECOVERING:
        return stop(state, Phase.RECOVERING, why, 0.0)
    incidents.note(state, "StopAttempt", why)
    return [StopAttempt(attempt=attempt, grace_s=0.0, reason=why)]


def when_stopped(state: State) -> list[AnyAction]:
    """Nothing of the attempt is left: explain the fault, or end the job."""
    if state.phase is Phase.CLOSING:
        return end(state, Outcome.STOPPED, state.why)
    size, state.sizing.changing_to = state.sizing.changing_to, None
    if state.bad_step is not None:
        pass  # whatever it was stopped for, what it has done last is worth nothing
    elif size is not None and state.incidents[-1].cause == incidents.RESIZED:
        sizes.change(state, size, state.why)
        return _go_on(state)
    elif state.incidents[-1].cause == incidents.UPDATED:
        return _go_on(state)
    if state.hang is not None:
        return after_verdict(state, state.hang)
    reason = f"attempt {state.attempt} is stopped on every node"
    exits, others = state.exits, state.others
    return [Diagnose(attempt=state.attempt, exits=exits, others=others, reason=reason)]


def _go_on(state: State) -> list[AnyAction]:
    """The attempt was stopped on purpose: nothing has failed, and the next one follows at once."""
    state.move(Phase.WAITING, state.why)
    return try_start(state)


def after_verdict(state: State, verdict: Diagnosed) -> list[AnyAction]:
    """The ladder: give up on what cannot change, on a repeated error of the script, on trouble that
    lasts too long or a crash loop; else start again."""
    verdict = conditions.explained(state, verdict)
    incidents.apply_verdict(state, verdict)
    cause = state.incidents[-1].cause
    if cause in incidents.OF_NO_WORKER:
        verdict = msgspec.structs.replace(
            verdict,
            cause=cause,
            rank=state.incidents[-1].rank,
            user_error=False,
            environment=False,
            final=False,
        )
    _count(state, verdict)
    state.restarts = restart.recent(state.restarts, state.now, state.limits.window_s)
    reverted = versions.reverts(state, verdict)
    ends = numerics.after_verdict(state, verdict, reverted=reverted)
    if reverted:
        return _go_on(state)
    ends = ends or _ends(state, verdict)
    if ends is not None:
        return end(state, *ends)
    if verdict.user_error and verdict.signature is not None:
        state.last_failure = Failure(verdict.signature, state.max_step)
    delay_s = _delay_s(state, verdict)
    return [*_replace(state, verdict), *_restart(state, delay_s)]


def _count(state: State, verdict: Diagnosed) -> None:
    """Whether this attempt came further than those before it, and for how long none has."""
    progress = _made_progress(state, verdict)
    state.fruitless = 0 if progress else state.fruitless + 1
    if progress:
        state.barren, state.trouble_since = 0, None
    if verdict.environment and state.trouble_since is None:
        state.trouble_since = state.now


def _ends(state: State, verdict: Diagnosed) -> tuple[Outcome, str] | None:
    """Whether the job ends with this failure, how, and why."""
    limits = state.limits
    if verdict.final:
        return Outcome.FAILED, verdict.summary
    again = _same_error(state, verdict)
    if again and not _may_repeat(state):
        why = f"the same error repeated at the same place without progress: {verdict.summary}"
        if not _goes_back(state, verdict, last_chance=True):
            return Outcome.FAILED, why
    elif not _goes_back(state, verdict, last_chance=False) and again:
        times = f"restart {state.barren + 1} of {limits.max_restarts} for it"
        incidents.note(state, "Repeat", f"the same error again, without progress: {times}")
    if verdict.environment and _lasts_too_long(state):
        return Outcome.GAVE_UP, _trouble(state)
    if len(state.restarts) < limits.max_restarts or _may_wait(state, verdict):
        return None
    return Outcome.FAILED if verdict.user_error else Outcome.GAVE_UP, _cap_reached(state)


def _same_error(state: State, verdict: Diagnosed) -> bool:
    """An error of the script that is the last one again."""
    signature = verdict.signature if verdict.user_error else None
    return signature is not None and restart.same_failure(
        state.last_failure, signature, state.max_step
    )


def _may_repeat(state: State) -> bool:
    """Who asks for a number of restarts gets it for errors of the script too."""
    return state.limits.exact and state.barren < state.limits.max_restarts


def _lasts_too_long(state: State) -> bool:
    """Whether the environment has kept the job from any progress for longer than it may."""
    limits = state.limits
    if limits.exact:
        return state.barren >= limits.max_restarts
    since = state.trouble_since
    return since is not None and state.now - since >= limits.window_s


def _may_wait(state: State, verdict: Diagnosed) -> bool:
    """Whether the cap is waited for: nobody set it for this, and the script did nothing wrong."""
    return verdict.environment and not state.limits.exact and bool(state.restarts)


def _delay_s(state: State, verdict: Diagnosed) -> float:
    """How long to wait before the next attempt."""
    limits, restarts = state.limits, state.restarts
    if not verdict.environment:
        return restart.backoff_s(state.fruitless)
    delay_s = restart.patience_s(state.fruitless, limits.max_restarts, limits.window_s)
    if len(restarts) >= limits.max_restarts:  # until the first of them does not count any more
        delay_s = max(delay_s, restarts[0] + limits.window_s - state.now + ROUNDING_S)
    return delay_s


def _goes_back(state: State, verdict: Diagnosed, *, last_chance: bool) -> bool:
    """Whether what was restored is to be blamed, so that an older checkpoint comes next."""
    if verdict.environment or verdict.cause in poison.INNOCENT:
        return False
    now = checkpoints.trial(state, verdict)
    back = checkpoints.roll_back(state, now, last_chance=last_chance)
    state.last_trial = now
    return back


def _replace(state: State, verdict: Diagnosed) -> list[AnyAction]:
    """Give up the node that the verdict blames if its device has failed too often or for good, and
    others with a fault while there are spares without one."""
    return [*_blamed(state, verdict), *_sick(state)]


def _blamed(state: State, verdict: Diagnosed) -> list[AnyAction]:
    slow = verdict.cause == replace.STRAGGLER
    if not (slow or replace.blames_machine(verdict.cause)) or verdict.rank is None:
        return []
    node_id = state.ranks.get(verdict.rank // state.workers_per_node)
    if node_id is None:
        return []
    if slow:
        sound = conditions.sound_spares(state)
        return _give_up(state, node_id, verdict.summary) if sound else []
    faults = replace.recent([*state.faults.get(node_id, []), state.now], state.now)
    state.faults[node_id] = faults
    limit, spares = state.limits.replace_after, conditions.sound_spares(state)
    certain = verdict.cause == conditions.CAUSE
    count = max(len(faults), limit) if certain else len(faults)
    if not replace.wanted(count, limit, spares=spares, fruitless=state.fruitless):
        return []
    often = f"{len(faults)} device faults on it in {replace.WINDOW_S:g} s"
    return _give_up(state, node_id, verdict.summary if certain else often)


def _sick(state: State) -> list[AnyAction]:
    actions: list[AnyAction] = []
    for node_id in conditions.retiring(state):
        why = conditions.faults(state, node_id)[0].detail
        actions += _give_up(state, node_id, f"{state.nodes[node_id].name}: {why}")
    return actions


def _give_up(state: State, node_id: str, why: str) -> list[AnyAction]:
    name = state.nodes[node_id].name
    blamed = conditions.cordons(state)
    many = f"; its machine is not cordoned: {len(state.cordoned)} were within a day"
    nodes.remove(state, node_id, why)
    incidents.note(state, "Fence", f"give up {name}: {why}{'' if blamed else many}")
    return [Fence(node=node_id, reason=why, blamed=blamed), *nodes.top_up(state, why)]


def _cap_reached(state: State) -> str:
    limits = state.limits
    cap = f"{limits.max_restarts} restarts in {limits.window_s:g} s are allowed"
    return f"{cap}, all of them used; last: {_last_cause(state)}"


def _trouble(state: State) -> str:
    restarts = f"{state.barren} restart{'s' if state.barren != 1 else ''}"
    lasted_s = state.now - (state.trouble_since or state.now)
    kept = f"errors of the environment prevented any progress for {lasted_s:.0f} s"
    return f"{kept}, through {restarts}; last: {_last_cause(state)}"


def _made_progress(state: State, verdict: Diagnosed) -> bool:
    """Steps done in this attempt or, where none are reported, some life of it."""
    ran_s = 0.0 if state.instrumented else state.now - state.attempt_started_at
    if ran_s >= restart.FRUITFUL_S:
        state.last_failure = None
    worth_s = restart.FRUITFUL_S if verdict.environment else restart.RAN_S
    return ran_s >= worth_s or state.max_step != state.progress_mark


def _restart(state: State, delay_s: float) -> list[AnyAction]:
    """Restarts count from when they begin, so a wait can let the first ones leave the window."""
    begins = state.now + delay_s
    state.restarts = [*restart.recent(state.restarts, begins, state.limits.window_s), begins]
    state.restarts_count += 1
    state.barren += 1
    state.move(Phase.WAITING, f"restart after: {_last_cause(state)}")
    if delay_s:
        state.start_deadline = begins
        attempts = "attempt" if state.fruitless == 1 else "attempts"
        row = f"{state.fruitless} {attempts} in a row without progress"
        used = f"{state.limits.max_restarts} restarts in {state.limits.window_s:g} s are used up"
        state.why = f"{row if state.fruitless else used}: next in {delay_s:.3g} s"
        incidents.note(state, "Wait", state.why)
    return try_start(state)


def end(state: State, outcome: Outcome, why: str) -> list[AnyAction]:
    """The job is over."""
    state.move(FINAL[outcome], why)
    state.outcome, state.ended_at = outcome, state.now
    state.start_deadline = state.wait_deadline = state.sizing.shrink_deadline = None
    state.sizing.grow_deadline = None
    state.leave_deadline = state.quiet_deadline = None
    if outcome is Outcome.SUCCEEDED:
        incidents.close(state)
    incidents.note(state, "EndJob", why)
    return [EndJob(outcome=outcome, reason=why)]


def all_finished(state: State, node: Node) -> bool:
    """Whether every worker of this member has already exited well."""
    return state.finished.issuperset(nodes.ranks_of(state, node))

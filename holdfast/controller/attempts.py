"""The life of an attempt: start it, stop it; what comes after is decided in `recovery.py`."""

from holdfast.actions import AnyAction, EndJob, Outcome, StartAttempt, StopAttempt
from holdfast.controller import checkpoints, incidents, keeping, nodes, sizes, skipping, versions
from holdfast.controller.phases import FINAL, Phase
from holdfast.controller.policies import restart
from holdfast.controller.state import Node, State
from holdfast.counts import count
from holdfast.events import Keeps, Milestone, Store


def try_start(state: State) -> list[AnyAction]:
    """Start the next attempt if every node rank is taken and no back-off runs; else wait."""
    if state.phase is not Phase.WAITING:
        return []
    if state.kept_node is not None and not nodes.is_member(state, state.kept_node.node):
        state.kept_node = state.start_deadline = None  # its rank is free
    sizes.settle(state)
    actions = nodes.fill_ranks(state)
    for action in actions:
        incidents.note(state, "AssignRank", action.reason)
    if actions:
        state.wait_deadline = None  # that was for nodes
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
    state.why = f"{count(nodes.missing(state), 'more node')} needed to start"
    if state.preparing:
        node, what = next(reversed(state.preparing.items()))
        state.why += f" ({state.nodes[node].name}: {what})"
    if state.ask_at is not None and state.now < state.ask_at:
        state.ask_at = min(state.ask_at, state.now + restart.LAST_BACKOFF_S)
        in_s = state.ask_at - state.now
        state.why += f", asked for in {in_s:.3g} s: {state.held_back}"
    if state.wait_deadline is None:
        state.wait_deadline = state.now + state.limits.node_wait_s
    return nodes.top_up(state, state.why)


def _start(state: State, store: Store) -> StartAttempt:
    taken = max(0, state.known_attempt - state.attempt)  # by attempts of an earlier journal
    state.earlier_attempts += taken
    state.attempt += taken + 1
    first = state.start is None and not state.incidents
    why = "first attempt" if first else f"restart after: {last_cause(state)}"
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
        bad_steps=state.bad_steps,
        skips=skipping.spans(state),
        committed=checkpoints.outliving(state),
        version=state.version,
        reason=why,
    )
    state.nodes[state.ranks[0]].store = None  # a store serves one attempt only
    state.attempt_started_at, state.progress_mark = state.now, state.max_step
    state.times.mark = None
    state.start_deadline = state.leave_deadline = state.quiet_deadline = None
    state.spoke_at = state.kept_node = None
    state.milestones, state.finished, state.deaths = [], set(), []
    state.stopped_for, state.standstill, state.stragglers = None, "", ()
    state.restored = state.reached = state.bad_step = state.corrupt_step = None
    state.stopped, state.skipped = False, 0
    incidents.note(state, "StartAttempt", why)
    return state.start


def last_cause(state: State) -> str:
    """What the last incident was about."""
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
    parks: bool = False,
) -> list[AnyAction]:
    """Order every member to end this attempt's workers, and wait until that is known. `parks`: its
    processes are of use, if the job keeps any and the attempt has come so far that there is a
    snapshot; after a fault on the way there all are replaced."""
    state.move(phase, why)
    state.stopped, state.standstill = False, ""
    state.leave_deadline = state.quiet_deadline = state.sizing.grow_deadline = None
    state.wait_deadline = state.sizing.shrink_deadline = None
    state.ask_at = None if phase is Phase.CLOSING else state.ask_at
    state.sizing.stop_at = state.now
    incidents.note(state, "StopAttempt", why)
    parks = parks and state.limits.in_process and Milestone.FIRST_STEP in state.milestones
    state.stop = StopAttempt(
        attempt=state.attempt,
        grace_s=grace_s,
        save=save,
        keeps=keeps,
        look=look,
        park_s=(grace_s if keeps else keeping.park_s(state)) if parks else None,
        reason=why,
    )
    return [state.stop]


def can_save(state: State) -> bool:
    """Whether what has been done may be saved once more: where it trains, will do so in a moment
    with what is only in memory, or is being stopped with a snapshot that is still to be taken."""
    switches = state.stop is not None and bool(state.stop.keeps) and not state.stopped
    match state.phase:
        case Phase.RUNNING:
            return True
        case Phase.STARTING:
            return state.max_step is not None
        case Phase.RECOVERING:
            return switches
        case _:
            return False


def stop_again(state: State) -> StopAttempt:
    """The same order once more. Who was asked for a last snapshot still is, as long as all members
    are there; all else was to end long ago."""
    order, complete = state.stop, len(state.ranks) == state.size
    known = order is not None and order.attempt == state.attempt
    if order is not None and known and complete and (order.save or order.keeps):
        return order
    return StopAttempt(attempt=state.attempt, grace_s=0.0, reason=state.why)


def overtaken(state: State, attempt: int, diverged: str = "") -> list[AnyAction]:
    """The lines that ordered the attempts up to this one are lost, or this version has `diverged`
    from them: stop whatever is left of them. The order that is known is none any more."""
    lost = attempt - state.attempt
    state.earlier_attempts += lost
    state.attempt, state.start, state.stopped = attempt, None, False
    state.deaths, state.finished, state.stopped_for = [], set(), None
    nodes.void_stores(state)
    why = diverged or f"orders up to attempt {attempt} were lost with a controller"
    if state.phase is Phase.CLOSING:
        return [StopAttempt(attempt=attempt, grace_s=0.0, reason=state.why)]
    incidents.open_for_lost_orders(state, why)
    if state.phase is not Phase.RECOVERING:
        return stop(state, Phase.RECOVERING, why, 0.0)
    incidents.note(state, "StopAttempt", why)
    return [StopAttempt(attempt=attempt, grace_s=0.0, reason=why)]


def end(state: State, outcome: Outcome, why: str) -> list[AnyAction]:
    """The job is over."""
    state.move(FINAL[outcome], why)
    _over(state, outcome, why)
    return [EndJob(outcome=outcome, reason=why)]


def end_as_recorded(state: State, order: EndJob) -> None:
    """The journal says that the job has ended so, whatever this version would have decided."""
    state.phase, state.why, state.stopped = FINAL[order.outcome], order.reason, True
    _over(state, order.outcome, order.reason)


def _over(state: State, outcome: Outcome, why: str) -> None:
    state.outcome, state.ended_at = outcome, state.now
    state.start_deadline = state.wait_deadline = state.sizing.shrink_deadline = None
    state.sizing.grow_deadline = state.updating.look_deadline = state.ask_at = None
    state.leave_deadline = state.quiet_deadline = state.recheck_at = None
    state.standstill = ""
    if outcome is Outcome.SUCCEEDED:
        incidents.close(state)
    incidents.note(state, "EndJob", why)


def all_finished(state: State, node: Node) -> bool:
    """Whether every worker of this member has already exited well."""
    return state.finished.issuperset(nodes.ranks_of(state, node))

"""The life of an attempt: start it, stop it, decide what comes after."""

from holdfast.actions import AnyAction, Diagnose, EndJob, Fence, Outcome, StartAttempt, StopAttempt
from holdfast.controller import checkpoints, incidents, nodes
from holdfast.controller.phases import FINAL, Phase
from holdfast.controller.policies import replace, restart
from holdfast.controller.state import Failure, Node, State
from holdfast.events import Diagnosed, Store


def try_start(state: State) -> list[AnyAction]:
    """Start the next attempt if every node rank is taken and no back-off runs; else wait."""
    if state.phase is not Phase.WAITING:
        return []
    actions = nodes.fill_ranks(state)
    for action in actions:
        incidents.note(state, "AssignRank", action.reason)
    if len(state.ranks) < state.limits.node_count:
        return [*actions, *_wait_for_nodes(state)]
    store = state.nodes[state.ranks[0]].store
    if store is None:  # its forkserver is coming back; NodeReady follows
        state.why = f"{state.nodes[state.ranks[0]].name} is to open a rendezvous store"
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
    state.attempt += 1
    first = state.start is None
    why = "first attempt" if first else f"restart after: {_last_cause(state)}"
    state.move(Phase.STARTING, why)
    state.start = StartAttempt(
        attempt=state.attempt,
        node_count=state.limits.node_count,
        workers_per_node=state.workers_per_node,
        store=store,
        redo_until=state.max_step or 0,
        restarts=state.attempt - 1 - state.earlier_attempts,
        restore_below=state.restore_below,
        reason=why,
    )
    state.nodes[state.ranks[0]].store = None  # a store serves one attempt only
    state.attempt_started_at, state.progress_mark = state.now, state.max_step
    state.start_deadline = None
    state.milestones, state.finished, state.deaths = [], set(), []
    state.restored = state.reached = None
    state.stopped = False
    incidents.note(state, "StartAttempt", why)
    return state.start


def _last_cause(state: State) -> str:
    return state.incidents[-1].summary if state.incidents else "nodes were lost before the start"


def stop(
    state: State, phase: Phase, why: str, grace_s: float, *, save: bool = False
) -> list[AnyAction]:
    """Order every member to end this attempt's workers, and wait until that is known."""
    state.move(phase, why)
    state.stopped = False
    incidents.note(state, "StopAttempt", why)
    return [StopAttempt(attempt=state.attempt, grace_s=grace_s, save=save, reason=why)]


def when_stopped(state: State) -> list[AnyAction]:
    """Nothing of the attempt is left: explain the fault, or end the job."""
    if state.phase is Phase.CLOSING:
        return end(state, Outcome.STOPPED, state.why)
    reason = f"attempt {state.attempt} is stopped on every node"
    return [Diagnose(attempt=state.attempt, exits=state.exits, reason=reason)]


def after_verdict(state: State, verdict: Diagnosed) -> list[AnyAction]:
    """The ladder: give up on a repeated user error or a crash loop, else start again."""
    incidents.apply_verdict(state, verdict)
    machine = state.incidents[-1].cause == "node-lost"
    user_error = verdict.user_error and not machine
    signature = verdict.signature if user_error else None
    progress = _made_progress(state)
    if _goes_back(state, verdict, signature):
        pass
    elif restart.same_failure(state.last_failure, signature, state.max_step):
        why = f"the same error came back at the same place without progress: {verdict.summary}"
        return end(state, Outcome.FAILED, why)
    state.restarts = restart.recent(state.restarts, state.now, state.limits.window_s)
    if len(state.restarts) >= state.limits.max_restarts:
        outcome = Outcome.FAILED if user_error else Outcome.GAVE_UP
        return end(state, outcome, _cap_reached(state))
    if signature is not None:
        state.last_failure = Failure(signature, state.max_step)
    state.fruitless = 0 if progress else state.fruitless + 1
    return [*_replace(state, verdict), *_restart(state)]


def _goes_back(state: State, verdict: Diagnosed, signature: str | None) -> bool:
    """Whether what was restored is to be blamed, so that an older checkpoint comes next."""
    if state.incidents[-1].cause == "node-lost":
        return False
    now = checkpoints.trial(state, verdict)
    last_chance = restart.same_failure(state.last_failure, signature, state.max_step)
    back = checkpoints.roll_back(state, now, last_chance=last_chance)
    state.last_trial = now
    return back


def _replace(state: State, verdict: Diagnosed) -> list[AnyAction]:
    """Give up the node that the verdict blames if its device has failed too often."""
    blames = replace.blames_machine(verdict.cause) and state.incidents[-1].cause == verdict.cause
    if not blames or verdict.rank is None:
        return []
    node_id = state.ranks.get(verdict.rank // state.workers_per_node)
    if node_id is None:
        return []
    faults = replace.recent([*state.faults.get(node_id, []), state.now], state.now)
    state.faults[node_id] = faults
    limit, spares = state.limits.replace_after, len(state.spares)
    if not replace.wanted(len(faults), limit, spares=spares, fruitless=state.fruitless):
        return []
    why = f"{len(faults)} device faults on it in {replace.WINDOW_S:g} s"
    nodes.remove(state, node_id, why)
    incidents.note(state, "Fence", why)
    return [Fence(node=node_id, reason=why, blamed=True), *nodes.top_up(state, why)]


def _cap_reached(state: State) -> str:
    limits = state.limits
    cap = f"{limits.max_restarts} restarts in {limits.window_s:g} s are allowed"
    return f"{cap} and all are used; last: {_last_cause(state)}"


def _made_progress(state: State) -> bool:
    """Steps done in this attempt or, where none are reported, some life of it."""
    ran_s = 0.0 if state.instrumented else state.now - state.attempt_started_at
    if ran_s >= restart.FRUITFUL_S:
        state.last_failure = None
    return ran_s >= restart.RAN_S or state.max_step != state.progress_mark


def _restart(state: State) -> list[AnyAction]:
    state.restarts.append(state.now)
    state.restarts_count += 1
    state.move(Phase.WAITING, f"restart after: {_last_cause(state)}")
    delay = restart.backoff_s(state.fruitless)
    if delay:
        state.start_deadline = state.now + delay
        state.why = f"{state.fruitless} attempts in a row without progress: next in {delay:g} s"
        incidents.note(state, "Wait", state.why)
    return try_start(state)


def end(state: State, outcome: Outcome, why: str) -> list[AnyAction]:
    """The job is over."""
    state.move(FINAL[outcome], why)
    state.outcome, state.ended_at = outcome, state.now
    state.start_deadline = state.wait_deadline = None
    if outcome is Outcome.SUCCEEDED:
        incidents.close(state)
    incidents.note(state, "EndJob", why)
    return [EndJob(outcome=outcome, reason=why)]


def all_finished(state: State, node: Node) -> bool:
    """Whether every worker of this member has already exited well."""
    return state.finished.issuperset(nodes.ranks_of(state, node))

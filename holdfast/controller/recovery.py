"""What comes after an attempt: explained by its verdict, answered by the ladder.

One step after the other is asked of `policies/ladder.py` and taken, until one that starts the next
attempt, or ends the job: first the state goes back if it has to, then nodes are left that should
be, and only then somebody starts, waits, or goes on with fewer.
"""

import msgspec

from holdfast.actions import AnyAction, Diagnose, Fence, Outcome
from holdfast.controller import (
    attempts,
    checkpoints,
    choices,
    conditions,
    hangs,
    incidents,
    machines,
    nodes,
    numerics,
    occurrences,
    repetitions,
    sizes,
    skipping,
    versions,
)
from holdfast.controller.phases import Phase
from holdfast.controller.policies import ladder, poison, replace, restart
from holdfast.controller.policies.situation import History, Rung, Situation, Trouble
from holdfast.controller.state import Failure, KeptNode, State, Trial
from holdfast.counts import count
from holdfast.events import Diagnosed, NodesChecked

NODES_KEPT = 8  # on which the same error was seen
NAMED_KEPT = 8  # attempts in a row without progress, whose verdicts are remembered


def when_stopped(state: State) -> list[AnyAction]:
    """Nothing of the attempt is left: explain the fault, or end the job."""
    if state.phase is Phase.CLOSING:
        return attempts.end(state, Outcome.STOPPED, state.why)
    size, state.sizing.changing_to = state.sizing.changing_to, None
    if state.bad_step is not None:
        pass  # whatever it was stopped for, what it has done last is worth nothing
    elif size is not None and state.incidents[-1].cause == ladder.RESIZED:
        sizes.change(state, size, state.why)
        return _as_planned(state)
    elif state.incidents[-1].cause == incidents.UPDATED:
        return _as_planned(state)
    elif state.incidents[-1].cause == incidents.REPEATED:
        return _repeat(state)
    repeating = state.repeating
    if repeating is not None and not repeating.id and state.suspicion is not None:
        return [repetitions.order(state, "group tests were not reported; repeating them")]
    if again := machines.check_again(state):
        return again
    if state.stopped_for is not None:
        return after_verdict(state, state.stopped_for)
    reason = f"attempt {state.attempt} is stopped on every node"
    exits, others = state.exits, state.others
    return [Diagnose(attempt=state.attempt, exits=exits, others=others, reason=reason)]


def _as_planned(state: State) -> list[AnyAction]:
    """Nothing has failed, and what this attempt has done counts; how far it came is known now."""
    state.incidents[-1].step = state.max_step
    if _came_further(state, restart.RAN_S):
        _forget(state)
    return _go_on(state)


def _go_on(state: State) -> list[AnyAction]:
    """Nothing has failed that the next attempt would meet again: it follows at once."""
    state.move(Phase.WAITING, state.why)
    return attempts.try_start(state)


def _repeat(state: State) -> list[AnyAction]:
    """What somebody wants to know; then, or where a node was lost meanwhile, training goes on."""
    if _came_further(state, restart.RAN_S):
        _forget(state)
    if state.repeating is None or len(state.ranks) < state.size:
        state.repeating = None
        return _go_on(state)
    return [repetitions.order(state, state.why)]


def after_verdict(state: State, verdict: Diagnosed) -> list[AnyAction]:
    """It is known why the attempt has failed: what is done about it."""
    verdict = conditions.explained(state, verdict)
    incidents.apply_verdict(state, verdict)
    if state.incidents[-1].cause == incidents.LEFT:
        return _moved_on(state, verdict)
    verdict = _seen_before(state, verdict)
    occurrences.heard(state, verdict)
    _count(state, verdict)
    return _climb(state, verdict)


def when_checked(state: State, event: NodesChecked) -> list[AnyAction]:
    """All machines were, because nobody knew which is to blame; now somebody may."""
    if event.told:
        asked = state.repeating is not None and bool(state.repeating.id)
        verdict = repetitions.heard(state, event)
        if asked and state.repeating is None:
            return [*_retire(state), *_go_on(state)]
    else:
        verdict = machines.heard(state, event)
    if verdict is None:
        return []
    verdict = conditions.explained(state, verdict)
    incidents.apply_verdict(state, verdict)
    actions = _climb(state, verdict)
    machines.tolerate(state)
    state.slowed = 0
    if state.repeating is None or state.repeating.id:  # else it waits for what groups show
        state.suspicion = None
    return actions


def _climb(state: State, verdict: Diagnosed) -> list[AnyAction]:
    """One step after the other."""
    failure = _failure(state, verdict)
    actions: list[AnyAction] = []
    while True:
        chosen = ladder.choose(failure)
        choices.record(state, chosen, failure.trouble)
        if chosen.outcome is not None:
            return [*actions, *attempts.end(state, chosen.outcome, chosen.reason)]
        if chosen.rung is Rung.ROLL_CODE:
            versions.revert(state, chosen.reason)
            return _without_the_update(state, failure.trouble.bad_step)
        if chosen.rung is Rung.CHECK:
            return [*actions, machines.check_all(state, verdict, chosen.reason)]
        if chosen.rung is Rung.REPLAY:
            return [*actions, repetitions.begin(state, verdict, chosen.reason)]
        if chosen.rung is not Rung.ROLL_BACK:
            break
        failure = _gone_back(state, verdict, failure)
    _remember(state, verdict)
    if failure.history.again:
        incidents.note(state, "Repeat", chosen.reason)
    if chosen.rung is Rung.REPLACE and ladder.asks_node(failure):
        actions += _give_up(state, _blamed(state, verdict), chosen.reason)
    elif chosen.rung is Rung.ISOLATE:
        actions += _give_up(state, _named(state, verdict), chosen.reason, innocent=True)
    if ladder.kept(failure) is not None:
        return [*actions, *_retire(state), *_held_back(state, verdict, failure, chosen.reason)]
    return [*actions, *_retire(state), *_restart(state, ladder.delay_s(failure))]


def waited(state: State) -> list[AnyAction]:
    """The back-off is over. What was to be left before and stayed may be left by now."""
    state.start_deadline = None
    kept, state.kept_node = state.kept_node, None
    if kept is None:
        return attempts.try_start(state)
    situation = choices.situation(state, kept.trouble, kept.history)
    chosen = ladder.choose(situation)
    actions: list[AnyAction] = []
    if not situation.means.held and chosen.rung in (Rung.REPLACE, Rung.ISOLATE):
        choices.record(state, chosen, kept.trouble)
        innocent = chosen.rung is Rung.ISOLATE
        actions = _give_up(state, kept.node, chosen.reason, innocent=innocent)
    return [*actions, *attempts.try_start(state)]


def _moved_on(state: State, verdict: Diagnosed) -> list[AnyAction]:
    """Nodes were taken away by intent: nothing has failed, so nothing is counted or waited for."""
    if _made_progress(state, verdict):
        _forget(state)
    gone = _retire(state)
    state.move(Phase.WAITING, f"restart after: {attempts.last_cause(state)}")
    return [*gone, *attempts.try_start(state)]


def _without_the_update(state: State, bad_step: int | None) -> list[AnyAction]:
    """The version before has not met this: numbers that were bad are bad for the first time."""
    if bad_step is not None:
        numerics.go_below(state, bad_step)
    return _go_on(state)


def _seen_before(state: State, verdict: Diagnosed) -> Diagnosed:
    """The verdict, or what the attempt was stopped for where that explains whatever workers say."""
    incident = state.incidents[-1]
    if incident.cause not in incidents.OF_NO_WORKER:
        return verdict
    return msgspec.structs.replace(
        verdict,
        cause=incident.cause,
        summary=incident.summary,
        confidence=incidents.CERTAIN,
        rank=incident.rank,
        user_error=False,
        environment=False,
        final=False,
    )


def _count(state: State, verdict: Diagnosed) -> None:
    """Whether this attempt came further than those before it, and for how long none has."""
    progress = _made_progress(state, verdict)
    state.fruitless += 1
    if progress:
        _forget(state)
        state.falls = 0
    else:
        state.named = [*state.named, _named(state, verdict)][-NAMED_KEPT:]
    if verdict.environment and state.trouble_since is None:
        state.trouble_since = state.now
    window_s = state.limits.window_s
    state.restarts = restart.recent(state.restarts, state.now, window_s)
    new = [state.now] if verdict.cause in replace.IN_GROUPS and verdict.rank is None else []
    state.nameless = [*restart.recent(state.nameless, state.now, window_s), *new]


def _forget(state: State) -> None:
    """Attempts without progress, and what they have brought about: there was some."""
    state.fruitless, state.named, state.checked = 0, [], False
    state.barren, state.trouble_since = 0, None


def restored(state: State, step: int) -> None:
    """An attempt goes on after this step. Behind the furthest one that is progress as well, where
    it is more than the previous attempt restored: a job that has lost what it had saved makes up
    for it. What is lost as often as restarts are allowed is no progress."""
    before, state.kept, state.restored = state.kept, step, step
    if before is not None and step < before:
        state.falls += 1
    elif before is not None and step > before and 0 < state.falls <= state.limits.max_restarts:
        _forget(state)


def _made_progress(state: State, verdict: Diagnosed) -> bool:
    """Steps done in this attempt or, where none are reported, some life of it. A script that came
    to its end and hung there has nothing left to come further with, and one that hangs again where
    it hung before came no further."""
    if verdict.signature == hangs.ENDED or hangs.comes_again(state):
        return state.max_step != state.progress_mark
    if _ran_s(state) >= restart.FRUITFUL_S:
        state.last_failure = None
    return _came_further(state, restart.FRUITFUL_S if verdict.environment else restart.RAN_S)


def _came_further(state: State, worth_s: float) -> bool:
    return _ran_s(state) >= worth_s or state.max_step != state.progress_mark


def _ran_s(state: State) -> float:
    """For how long the attempt has run, up to its fault: a script that hangs as it begins, or ends,
    has lived no longer for having hung. Zero where steps tell more."""
    if state.instrumented:
        return 0.0
    fault = state.open_incident
    ours = fault is not None and fault.attempt == state.attempt
    return (fault.started_at if fault and ours else state.now) - state.attempt_started_at


# ── what the ladder is told ───────────────────────────────────────────────────────────────────


def _failure(state: State, verdict: Diagnosed) -> Situation:
    """The verdict with the history that matters for it. A device fault is counted."""
    bad_step = numerics.heard(state, verdict)
    trial = _trial(state, verdict, bad_step)
    unproven = versions.unproven(state, verdict)
    recurs = occurrences.whose(state, verdict)
    cleared = bool(unproven) or (recurs is not None and recurs.whose == "code")
    node = "" if cleared else _blamed(state, verdict)
    named = node or (_named(state, verdict) if verdict.cause in replace.NAMING else "")
    trouble = Trouble(
        cause=verdict.cause,
        summary=state.incidents[-1].summary,
        confidence=verdict.confidence,
        user_error=verdict.user_error,
        environment=verdict.environment,
        final=verdict.final,
        ended=True,
        node=state.nodes[named].name if named else "",
        faulty=verdict.cause in (conditions.CAUSE, replace.LOST),
        bad_step=bad_step,
        stops=numerics.stops(state),
    )
    history = History(
        faults=_faults(state, verdict, node),
        again=_same_error(state, verdict),
        stuck_s=_stuck_s(state, verdict),
        bad_again=bad_step is not None and numerics.is_near(state, bad_step),
        poisoned=poison.suspected(state.last_trial, trial),
        spent=state.rolled_back == trial.failure,
        restored=(state.restored or 0) if state.instrumented else None,
        fruitless=state.fruitless,
        barren=state.barren,
        restarts=len(state.restarts),
        freed_s=choices.freed_s(state),
        trouble_s=None if state.trouble_since is None else state.now - state.trouble_since,
        unproven=unproven,
        recurs=recurs,
        checked=state.checked,
        slowed=state.slowed == state.attempt,
        named=state.named.count(named) if named else 0,
        nameless=len(state.nameless),
        kept=sum(map(len, conditions.kept(state).values())),
        stays=_named(state, verdict) in conditions.kept(state),
    )
    older = poison.way_back(state.committed, trial.restored)
    return choices.situation(state, trouble, history, older)


def _trial(state: State, verdict: Diagnosed, bad_step: int | None) -> Trial:
    """How the attempt ended, as it is compared with others."""
    if bad_step is not None and numerics.is_near(state, bad_step):
        return numerics.trial(state)
    return checkpoints.trial(state, verdict)


def _blamed(state: State, verdict: Diagnosed) -> str:
    """The member whose machine the verdict speaks of; empty if it does of none."""
    of_node = verdict.cause == replace.STRAGGLER or replace.blames_machine(verdict.cause)
    return _named(state, verdict) if of_node else ""


def _named(state: State, verdict: Diagnosed) -> str:
    """The member that the verdict names, whatever for."""
    if verdict.rank is None:
        return ""
    return state.ranks.get(verdict.rank // state.workers_per_node, "")


def _faults(state: State, verdict: Diagnosed, node: str) -> int:
    if not node or not replace.blames_machine(verdict.cause):
        return 0
    new = [] if state.suspicion is not None else [state.now]  # after checks it is the same one
    faults = replace.recent([*state.faults.get(node, []), *new], state.now)
    state.faults[node] = faults
    return len(faults)


def _same_error(state: State, verdict: Diagnosed) -> bool:
    """An error of the script that is the last one again. One of a machine that is suspected since
    before any step may be left with it, where a spare is."""
    found = verdict.occurrence
    recurs = found.recurs if found is not None and not found.step and state.spares else None
    alone = recurs is not None and recurs.whose == "machine" and state.limits.replace_after
    signature = verdict.signature if verdict.user_error and not alone else None
    return signature is not None and restart.same_failure(
        state.last_failure, signature, state.max_step
    )


def _stuck_s(state: State, verdict: Diagnosed) -> float | None:
    """For how long this very error has kept the script from its first step. Where a single one of
    several nodes had it, others may not have it."""
    last = state.last_failure
    begun = state.max_step is not None or state.steps_seen or state.committed
    if last is None or begun or not _same_error(state, verdict):
        return None
    alone = state.size > 1 and len({*last.nodes, *_with_the_same(state, verdict)}) < 2
    return None if alone else state.now - last.since


def _with_the_same(state: State, verdict: Diagnosed) -> list[str]:
    """Nodes whose workers failed as the one that the verdict names."""
    errors = {death.exited.rank: death.exited.error for death in state.deaths}
    first = None if verdict.rank is None else errors.get(verdict.rank)
    if first is None:
        return []
    place = first.type, first.line
    alike = (d for d in state.deaths if (e := d.exited.error) and (e.type, e.line) == place)
    ranks = {rank for death in alike for rank in death.ranks}
    return sorted({state.ranks.get(rank // state.workers_per_node, "") for rank in ranks} - {""})


def _remember(state: State, verdict: Diagnosed) -> None:
    """What the next failure is compared with."""
    if not (verdict.environment or verdict.cause in poison.INNOCENT):
        state.last_trial = checkpoints.trial(state, verdict)
    if verdict.user_error and verdict.signature is not None:
        last, found = state.last_failure, _with_the_same(state, verdict)
        same = last is not None and _same_error(state, verdict)
        since = last.since if last is not None and same else state.now
        known = last.nodes if last is not None and same else ()
        nodes = tuple(dict.fromkeys((*known, *found)))[:NODES_KEPT]
        state.last_failure = Failure(verdict.signature, state.max_step, since, nodes)


# ── the steps ─────────────────────────────────────────────────────────────────────────────────


def _gone_back(state: State, verdict: Diagnosed, failure: Situation) -> Situation:
    """The state goes back; what is left to be decided."""
    trouble, history, older = failure.trouble, failure.history, failure.means.older
    if trouble.bad_step is not None and (not history.bad_again or failure.means.skips):
        if history.bad_again:
            skipping.plan(state, trouble.bad_step)
        numerics.go_below(state, trouble.bad_step)
    else:
        assert older is not None, "the ladder goes back to what is known"
        trial = _trial(state, verdict, trouble.bad_step)
        checkpoints.roll_back(state, trial, older)
        if trouble.bad_step is not None:
            state.poison_step = max(trouble.bad_step, state.poison_step or 0)
        elif state.reached is not None:
            skipping.plan(state, state.reached + 1)
        history = msgspec.structs.replace(history, again=False, poisoned=False)
    trouble = msgspec.structs.replace(trouble, bad_step=None)
    history = msgspec.structs.replace(history, slowed=False)  # it would be weighed once more then
    return msgspec.structs.replace(failure, trouble=trouble, history=history)


def _retire(state: State) -> list[AnyAction]:
    """Others that have a fault, or are about to go, give their ranks to spares."""
    actions: list[AnyAction] = []
    for node_id in conditions.retiring(state):
        if going := conditions.departure(state, node_id):
            told = f"{state.nodes[node_id].name}: {going.detail}"
            actions += _give_up(state, node_id, told, innocent=True)
            continue
        trouble = choices.of_fault(state, state.nodes[node_id], trains=False)
        situation = choices.situation(state, trouble)
        chosen = ladder.choose(situation)
        if chosen.rung is Rung.REPLACE and ladder.asks_node(situation):
            choices.record(state, chosen, trouble)
            actions += _give_up(state, node_id, chosen.reason)
    return actions


def _give_up(state: State, node_id: str, why: str, *, innocent: bool = False) -> list[AnyAction]:
    node = state.nodes[node_id]
    many = "" if innocent else conditions.cordon(state, node)
    if conditions.departure(state, node_id) is None:
        conditions.removed(state, node)
    kept = f"; its machine is not cordoned: {many}" if many else ""
    nodes.remove(state, node_id, why)
    incidents.note(state, "Fence", f"remove {node.name}: {why}{kept}")
    blamed = not (many or innocent)
    return [Fence(node=node_id, reason=why, blamed=blamed), *nodes.top_up(state, why)]


def _restart(state: State, delay_s: float) -> list[AnyAction]:
    """Restarts count from when they begin, so a wait can let the first ones leave the window."""
    _count_restart(state, state.now + delay_s)
    state.move(Phase.WAITING, f"restart after: {attempts.last_cause(state)}")
    if delay_s:
        row = f"{count(state.fruitless, 'attempt')} in a row without progress"
        used = ladder.cap_text(state.limits.max_restarts, state.limits.window_s)
        _wait(state, delay_s, f"{row if state.fruitless else used}: next in {delay_s:.3g} s")
    return attempts.try_start(state)


def _held_back(state: State, verdict: Diagnosed, failure: Situation, why: str) -> list[AnyAction]:
    """Likewise, with a node that only a limit of removals keeps. The first such restart counts, as
    one with a spare would have; what comes of it does not."""
    delay_s, node = ladder.delay_s(failure), _named(state, verdict)
    if failure.history.stays:
        state.restarts_count += 1
    else:
        _count_restart(state, state.now + delay_s)
    known = conditions.kept(state)
    state.kept_restarts = {**known, node: [*known.get(node, []), state.now]}
    state.move(Phase.WAITING, f"restart after: {attempts.last_cause(state)}")
    if delay_s:
        decided = msgspec.structs.replace(failure.history, restarts=0, barren=0)
        state.kept_node = KeptNode(node, failure.trouble, decided)
        _wait(state, delay_s, why)
    return attempts.try_start(state)


def _count_restart(state: State, begins: float) -> None:
    state.restarts = [*restart.recent(state.restarts, begins, state.limits.window_s), begins]
    state.restarts_count += 1
    state.barren += 1


def _wait(state: State, delay_s: float, why: str) -> None:
    state.start_deadline, state.why = state.now + delay_s, why
    incidents.note(state, "Wait", why)

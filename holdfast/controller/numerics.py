"""Numbers that are no numbers: what follows when the loss of an attempt was not finite.

The attempt is stopped, and the next one goes on below the first bad step: from a snapshot in memory
or a checkpoint, whichever is the newest. Where that comes again at the same place, what was
restored may carry it, so an older checkpoint is tried once; then the job ends. What the attempt did
from the bad step on counts as not done: it will be done again, and not as a repetition. What it
saved from there on is never restored, however far training has come since: a spare, or a node that
was away, may still hold it when all that is newer is lost.

The first report decides that it stops, the verdict, which knows what all ranks had noticed, from
which step on and because of whom.
"""

from holdfast.actions import AnyAction
from holdfast.controller import attempts, checkpoints, choices, incidents, versions
from holdfast.controller.phases import TRAINING, Phase
from holdfast.controller.policies.situation import Rung, Trouble
from holdfast.controller.state import State, Trial
from holdfast.counts import count
from holdfast.events import Diagnosed, LossPlateaued, NumbersBroke, NumbersSpiked, Quantity

CAUSE = "nan"
DIVERGED = "diverged"
NEAR_STEPS = 10  # a step so close to the last bad one, or before it, is the same place


def broke(state: State, event: NumbersBroke) -> list[AnyAction]:
    """The loss is not finite. While an attempt is stopped for another reason it is remembered."""
    if event.attempt != state.attempt or state.phase not in (*TRAINING, Phase.RECOVERING):
        return []
    what, step = event.broke.what.words, event.broke.step
    why = f"the {what} was {event.broke.value} at step {step} on rank {event.rank}"
    ignored = "recovery.on_nan is ignore" if state.limits.on_nan == "ignore" else ""
    trouble = Trouble(cause=CAUSE, summary=why, trains=True, harmless=ignored, bad_step=step)
    chosen = choices.choose(state, trouble)
    if chosen.rung is Rung.CARRY_ON:
        choices.record(state, chosen, trouble, incident=False)
        state.note(step, event.rank, f"{why} (recovery.on_nan: ignore)")
        return []
    forget_from(state, step)
    if state.phase is Phase.RECOVERING:
        incidents.note(state, "NumbersBroke", why)
        return []
    incidents.open_for_numbers(state, event, CAUSE, why)
    return attempts.stop(state, Phase.RECOVERING, why, state.limits.restart_grace_s)


def spiked(state: State, event: NumbersSpiked) -> list[AnyAction]:
    """Far above the usual and finite: training goes on, and may well recover. Not with a version
    that is on trial."""
    spike = event.spike
    if event.attempt != state.attempt:
        return []
    value, usual = f"{spike.value:.4g}", f"{spike.usual:.4g}"
    told = f"the {spike.what.words} rose to {value} at step {spike.step} on rank {event.rank}"
    told = f"{told}, from a median of {usual}"
    state.note(spike.step, event.rank, told)
    trusted = spike.what is not Quantity.LOSS or not versions.on_trial(state)
    if trusted or state.phase not in TRAINING:
        return []
    incidents.open_for_rank(state, DIVERGED, told, event.rank)
    return attempts.stop(state, Phase.RECOVERING, told, state.limits.restart_grace_s)


def plateaued(state: State, event: LossPlateaued) -> list[AnyAction]:
    """It may have converged, or be stuck: people decide."""
    if event.attempt == state.attempt:
        told = f"the loss has not fallen by {100 * event.share:g} % in {count(event.steps, 'step')}"
        medians = f"median {event.loss:.4g} at step {event.step}, {event.before:.4g} before"
        state.note(event.step, event.rank, f"{told} ({medians}; rank {event.rank})")
    return []


def finite(state: State, step: int) -> int:
    """How many of these steps were done with finite numbers, as far as is known."""
    return step if state.bad_step is None else min(step, state.bad_step - 1)


def heard(state: State, verdict: Diagnosed) -> int | None:
    """The first step whose numbers are worth nothing, if that is why training has to go back."""
    if state.bad_step is None:
        _passed(state)
        return None
    corrupt = state.bad_step == state.corrupt_step  # corruption.py has seen to what follows
    if verdict.step is not None:
        forget_from(state, min(state.bad_step, verdict.step))
    incident = state.incidents[-1]
    if incident.cause == CAUSE:
        incident.step = state.bad_step
    return None if corrupt else state.bad_step


def _passed(state: State) -> None:
    """The place is behind training, as it is known once the attempt has ended: whoever loses what
    was saved since, and comes there again, comes there with other numbers."""
    last = state.last_bad_step
    if last is not None and (state.reached or 0) > last + NEAR_STEPS:
        state.last_bad_step = None


def stops(state: State) -> bool:
    """Whether somebody wants the job to end with this failure."""
    bad = state.bad_step is not None and state.incidents[-1].cause == CAUSE
    return bad and state.limits.on_nan == "stop"


def is_near(state: State, step: int) -> bool:
    """Whether numbers were bad at this place before."""
    last = state.last_bad_step
    return last is not None and step <= last + NEAR_STEPS


def trial(state: State) -> Trial:
    """How an attempt ended whose numbers were bad again."""
    failure = f"{CAUSE} near step {state.last_bad_step}"
    return Trial(state.restored or 0, failure, state.reached)


def go_below(state: State, step: int) -> None:
    """The next attempt goes on from what was saved before this step."""
    state.last_bad_step = step
    state.restore_below = min(step, state.restore_below or step)
    state.poison_step = max(step, state.poison_step or 0)
    own = "the script resumes from what it has saved itself, if anything"
    ours = f"only what was saved before step {step} is restored"
    incidents.note(state, "RollBack", ours if state.instrumented else own)


def forget_from(state: State, step: int) -> None:
    """What this attempt did from this step on is not done."""
    state.bad_step = min(step, state.bad_step or step)
    checkpoints.never_restore(state, (state.attempt,), state.bad_step)
    before = state.progress_mark  # earlier attempts did so much with finite numbers
    if state.max_step is not None:
        state.max_step = min(state.max_step, max(before or 0, state.bad_step - 1))
    if state.reached is not None:
        state.reached = min(state.reached, state.bad_step - 1)

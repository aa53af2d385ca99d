"""Which version the next attempt runs: a newer one that is ready, or the one before.

An update that is ready is used from the next attempt on, whatever that begins for. If the first
steps after it fail in a way that new code can be blamed for, the previous version comes back; that
counts against no cap, because the failure came with the update, and each update has one.
"""

from holdfast.controller import incidents, occurrences
from holdfast.controller.policies import restart
from holdfast.controller.state import Stage, State, UpdateRecord
from holdfast.events import Diagnosed
from holdfast.versions import FIRST, Version

INNOCENT = frozenset(
    (
        *("node-lost", "orders-lost", "hardware-fault", "corruption", "device-error"),
        "device-lost",
        *("worker-killed", "forkserver-died", "store-lost", "straggler", "resized", "updated"),
    )
)
"""Causes that another version would not change, unless they are known to be the script's."""


def unused(state: State) -> UpdateRecord | None:
    """The update that is being prepared, or is ready."""
    last = state.updating.records[-1] if state.updating.records else None
    return last if last is not None and last.stage in (Stage.PREPARING, Stage.WAITING) else None


def image_comes(state: State) -> bool:
    """Whether new nodes will have another image, once it is prepared."""
    update = unused(state)
    if update is None or update.stage is not Stage.PREPARING:
        return False
    return update.version.only_image_of(state.version)


def inherit(state: State, version: Version) -> None:
    """The job was stopped, and goes on with the version that it had."""
    if version.number > FIRST.number:
        known = UpdateRecord(
            id="", version=version, by="holdfast resume", at=state.now, when="now",
            stage=Stage.USED, used_at=state.now, attempt=1,
        )  # fmt: skip
        state.updating.records, state.updating.used = [known], [version]
        state.updating.begun = version.number


def running(state: State) -> int:
    """The number of the version that the newest attempt runs."""
    return state.start.version.number if state.start is not None else FIRST.number


def use(state: State, update: UpdateRecord) -> None:
    """From the next attempt on."""
    updating = state.updating
    if update.back:
        _set_aside(state, updating.used.pop().number, f"{update.by} asked for the previous version")
    else:
        updating.used.append(update.version)
    update.stage, update.used_at, update.attempt = Stage.USED, state.now, state.attempt + 1
    updating.look_deadline = None
    state.tell(f"version {update.version.number} is used from now on")


def begin(state: State) -> None:
    """An attempt begins: with the newest version that is ready."""
    update, updating = unused(state), state.updating
    if update is not None and update.stage is Stage.WAITING:
        use(state, update)
        incidents.note(state, "Update", f"continue with version {update.version.number}")
    if state.version.number > updating.begun:
        updating.begun, updating.trial_since = state.version.number, state.now
        updating.trial_until = (state.max_step or 0) + state.limits.trial_steps


def on_trial(state: State) -> bool:
    """Whether this attempt runs a new version that has not done enough to be trusted."""
    updating = state.updating
    until = updating.trial_until
    newest = running(state) == state.version.number == updating.begun
    if until is None or not newest or not updating.used:
        return False
    if state.instrumented:
        return (state.max_step or 0) < until
    return state.limits.trial_steps > 0 and state.now - updating.trial_since < restart.FRUITFUL_S


def unproven(state: State, verdict: Diagnosed) -> str:
    """How far the version is that an attempt ran which has failed, if that is to blame."""
    cause = state.incidents[-1].cause
    recurs = occurrences.whose(state, verdict)
    innocent = cause in INNOCENT and (recurs is None or recurs.whose != "code")
    if verdict.environment or innocent or not on_trial(state):
        return ""
    steps = state.limits.trial_steps
    within = "step" if steps == 1 else f"{steps} steps"
    return f"version {state.version.number} failed within its first {within}"


def revert(state: State, why: str) -> None:
    """The version before is that of the next attempt."""
    version = state.updating.used.pop().number
    back = state.version.number
    _set_aside(state, version, why)
    update = unused(state)
    if update is not None and update.back:
        update.stage, update.why = Stage.REPLACED, f"version {version} was already rolled back"
    incidents.note(state, "Revert", f"return to version {back}: version {version} is rolled back")


def _set_aside(state: State, number: int, why: str) -> None:
    for update in state.updating.records:
        if update.version.number == number and not update.back:
            update.stage, update.why = Stage.REVERTED, why

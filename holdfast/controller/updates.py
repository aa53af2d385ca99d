"""Another version of a job that trains: prepared on its nodes first, then used.

Nothing of a version is used before every node that could be asked has made its workers ready; one
that says it cannot ends the update, and training goes on untouched. Then the attempt is stopped at
the end of a step, with a snapshot of it in memory, and the next one runs the new version. One that
is in no hurry is used by the next recovery, and after a day all the same.

Another image stops no attempt by itself: a node keeps the image that it was made with, so nodes are
replaced (`health`), and each one's successor trains from the next attempt on. It is used whatever
else is wrong, and without any node: where none comes, another image may be the way out.
"""

from holdfast.actions import AnyAction, KeepVersion, PrepareUpdate
from holdfast.controller import attempts, incidents, nodes, resizing, versions
from holdfast.controller.phases import TRAINING, Phase
from holdfast.controller.state import Stage, State, UpdateRecord
from holdfast.counts import count
from holdfast.events import Keeps, UpdatePrepared, UpdateRequested
from holdfast.versions import ENV, FIRST, Version, merged

FORCE_S = 86_400.0  # after which an update waits for no recovery any more
AGAIN_S = 10.0  # after which nodes are asked again, where none could be asked


def requested(state: State, event: UpdateRequested) -> list[AnyAction]:
    """Somebody wants another version."""
    known = any(update.id == event.id for update in state.updating.records)
    if known or state.phase is Phase.CLOSING:
        return []
    before = versions.unused(state)
    version = _version_before(state) if event.back else _next_version(state, event)
    state.updating.look_deadline = None
    update = UpdateRecord(
        id=event.id,
        version=version,
        by=event.by,
        at=state.now,
        when=event.when,
        canary=event.canary,
        back=event.back,
    )
    state.updating.records.append(update)
    if before is not None:
        before.stage = Stage.REPLACED
        before.why = f"{event.by} asked for version {version.number}"
    if version.number == state.version.number:  # one that was not used yet is taken back
        update.back, update.stage, update.why = False, Stage.USED, "it is the version in use"
        return [KeepVersion(version=version, reason=f"{event.by} asked for it")]
    return [_prepare(update)]


def _next_version(state: State, event: UpdateRequested) -> Version:
    newest = versions.unused(state)
    base = newest.version if newest is not None else state.version
    number = max((one.version.number for one in state.updating.records), default=FIRST.number) + 1
    given, kept = base.given, base.sets
    if event.args is not None:
        given, kept = event.args, {k: v for k, v in kept.items() if k.startswith(ENV)}
    return Version(
        number=number,
        code=event.code or base.code,
        given=given,
        sets=merged(kept, event.sets),
        image=event.image or base.image,
    )


def _version_before(state: State) -> Version:
    """Of one that is not used yet, that in use; who asks for it twice goes back once."""
    used, unused = state.updating.used, versions.unused(state)
    if unused is not None:
        return unused.version if unused.back else state.version
    if not used:
        return state.version
    return used[-2] if len(used) > 1 else FIRST


def _prepare(update: UpdateRecord) -> PrepareUpdate:
    update.asked = True
    why = f"{update.by} asked for version {update.version.number}"
    return PrepareUpdate(version=update.version, canary=update.canary, reason=why)


def again(state: State) -> list[AnyAction]:
    """A former controller may not have asked the nodes."""
    update = versions.unused(state)
    preparing = update is not None and update.stage is Stage.PREPARING
    return [_prepare(update)] if preparing and update is not None else []


def prepared(state: State, event: UpdatePrepared) -> list[AnyAction]:
    """Nodes have told whether it can be used."""
    update = versions.unused(state)
    if update is None or update.stage is not Stage.PREPARING:
        return []
    if update.version.number != event.version:
        return []
    if event.why:
        where = f"{event.node}: " if event.node else ""
        update.stage, update.why = Stage.REFUSED, f"{where}{event.why}"
        state.tell(f"version {event.version} is refused: {update.why}")
        return [KeepVersion(version=state.version, reason=update.why)]
    if not event.ready_count and not _is_image(state, update):
        update.asked = False  # there are no nodes yet
        state.updating.look_deadline = state.now + AGAIN_S
        return []
    update.stage, update.why = Stage.WAITING, _who_is_ready(event)
    return review(state)


def _who_is_ready(event: UpdatePrepared) -> str:
    ready = f"ready on {count(event.ready_count, 'node')}"
    return f"{ready}; no answer from {', '.join(event.missing)}" if event.missing else ready


def review(state: State) -> list[AnyAction]:
    """Whether the attempt that trains is to be stopped for a version that is ready."""
    update, updating = versions.unused(state), state.updating
    if (updating.look_deadline or state.now) > state.now:
        return []
    updating.look_deadline = None
    if update is None:
        return []
    if update.stage is Stage.PREPARING:
        return [] if update.asked else [_prepare(update)]
    if update.when == "next-failure" and state.now < update.at + FORCE_S:
        updating.look_deadline = update.at + FORCE_S
        return []
    at_once = update.when == "now" and state.phase in TRAINING and not state.finished
    if not (at_once or _is_image(state, update) or resizing.undisturbed(state)):
        return []
    return _switch(state, update)


def _is_image(state: State, update: UpdateRecord) -> bool:
    return update.version.only_image_of(state.version)


def _switch(state: State, update: UpdateRecord) -> list[AnyAction]:
    number, limits = update.version.number, state.limits
    why = f"{update.by} asked for version {number}"
    if _is_image(state, update):
        versions.use(state, update)  # its engine replaces nodes, one after the other
        if state.wait_deadline is not None:
            state.wait_deadline = state.now + limits.node_wait_s  # for nodes that have it
        state.stillborn, state.ask_at = 0, None  # those that failed had it not
        keep = KeepVersion(version=state.version, reason=why)
        return [keep, *nodes.top_up(state, why)]
    incidents.open_for_update(state, why)
    versions.use(state, update)
    keeps: Keeps = "" if update.when == "now" else "here"
    grace_s = limits.stop_grace_s if keeps else limits.restart_grace_s
    return attempts.stop(state, Phase.RECOVERING, why, grace_s, keeps=keeps)

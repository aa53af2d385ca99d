"""Workers that have ended by themselves: the job is done, or one of them is at fault.

The first failure opens an incident and has the attempt stopped; whatever fails after it is only
evidence. Exits with status 0 are counted until nobody is left. So of a hundred thousand exits two
or three decide something, and `may_wait` says which can be told together with others, later: the
journal must not grow with the number of ranks (docs/decisions/0021).
"""

from collections.abc import Sequence

from holdfast.actions import AnyAction
from holdfast.controller import attempts, incidents, leaving
from holdfast.controller.phases import TRAINING, Phase
from holdfast.controller.state import DatedExit, State
from holdfast.events import ExitGroup, WorkerExited, each_of, in_rows

MAX_DEATHS = 64  # kinds of exits kept per attempt, and exits that were told alone


def counts(state: State, exited: WorkerExited) -> bool:
    """Whether this attempt has this worker; else it is old news, or of a lost node."""
    node = state.nodes.get(exited.node)
    if exited.attempt != state.attempt or node is None:
        return False
    return node.node_rank == exited.rank // state.workers_per_node


def may_wait(state: State, exited: WorkerExited, waiting: int) -> bool:
    """Whether nothing is decided because of this exit at once.

    `waiting` is how many other ranks have exited with status 0 that `state` does not know of yet.
    """
    if state.phase not in TRAINING:
        return True
    if exited.exit_code != 0:
        return False
    known = exited.rank in state.finished
    last = len(state.finished) + waiting + (not known) >= state.world_size
    return not last and not (leaving.is_early(exited) and state.leave_deadline is None)


def exited(state: State, groups: Sequence[ExitGroup]) -> list[AnyAction]:
    """Workers of this attempt have ended; each rank counts once, however often it is told."""
    if state.phase is Phase.RECOVERING:
        for group in groups:
            _note(state, group)
        return []
    if state.phase not in TRAINING:
        return []
    well = [group for group in groups if _is_well(group)]
    actions = _finished(state, well) if well else []
    failed = [g for g in groups if not _is_well(g) and g.first.rank not in state.finished]
    return actions if state.ended or not failed else [*actions, *_failed(state, failed)]


def _is_well(group: ExitGroup) -> bool:
    return group.first.exit_code == 0


def _finished(state: State, groups: Sequence[ExitGroup]) -> list[AnyAction]:
    for group in groups:
        state.finished.update((group.first.rank, *each_of(group.others)))
        if not group.first.progress.finished:  # others may still have needed them
            _note(state, group)
    return leaving.left(state, [group.first for group in groups])


def _failed(state: State, groups: Sequence[ExitGroup]) -> list[AnyAction]:
    for group in groups:
        _note(state, group)
    incidents.open_for_exit(state, groups[0].first)
    why, look = state.incidents[-1].summary, bool(groups[0].first.clue)
    grace_s = state.limits.restart_grace_s
    return attempts.stop(state, Phase.RECOVERING, why, grace_s, look=look, parks=True)


def _note(state: State, group: ExitGroup) -> None:
    """Once for each rank; a few kinds are enough to see what happened, however large the job."""
    first, deaths = group.first, state.deaths
    died = DatedExit(state.now - first.ago_s, first, group.kind)
    if group.kind:
        _note_kind(deaths, died, {first.rank, *each_of(group.others)})
    elif len(deaths) < MAX_DEATHS and not any(death.has(first.rank) for death in deaths):
        deaths.append(died)


def _note_kind(deaths: list[DatedExit], died: DatedExit, ranks: set[int]) -> None:
    """These ranks died in the same way, `died` as the first of them."""
    rank, fresh = died.exited.rank, ranks.difference(*(death.ranks for death in deaths))
    place = _place(deaths, died)
    if not fresh:
        return
    if place is None:
        deaths.append(_of(died, died.kind, fresh))
        return
    known = deaths[place]
    earlier = rank in fresh and (died.at, rank) < (known.at, known.exited.rank)
    deaths[place] = _of(died if earlier else known, known.kind, fresh | known.ranks)


def _place(deaths: Sequence[DatedExit], died: DatedExit) -> int | None:
    """Where deaths of this kind are kept; once there are many kinds, those of its cause."""
    rank, kind = died.exited.rank, died.kind
    alike = [i for i, death in enumerate(deaths) if death.kind == kind or death.has(rank)]
    if not alike and len(deaths) >= MAX_DEATHS:
        alike = [i for i, death in enumerate(deaths) if _cause(death.kind) == _cause(kind)]
    return alike[0] if alike else None


def _cause(kind: str) -> str:
    return kind.partition(" ")[0]


def _of(first: DatedExit, kind: str, ranks: set[int]) -> DatedExit:
    return DatedExit(first.at, first.exited, kind, in_rows(ranks - {first.exited.rank}))

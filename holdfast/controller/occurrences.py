"""Errors that came before: what the verdict says of whose they are, and what the next one is
compared with.

An error that is not one machine's does not count against the nodes it came on, nor did it before.
"""

import msgspec

from holdfast.controller.state import State
from holdfast.events import Diagnosed
from holdfast.occurrences import Occurrence, Recurrence

KEPT = 32


def heard(state: State, verdict: Diagnosed) -> None:
    """Remember the error and tell whose it is, unless something else explains the failure."""
    found = verdict.occurrence
    if found is None or found.cause != verdict.cause:
        return
    recurs = found.recurs
    if recurs is not None:
        incident, sure = state.incidents[-1], f"confidence {recurs.confidence * 100:.0f} %"
        incident.evidence = [*incident.evidence, f"{recurs.text} ({sure})"]
    if recurs is not None and recurs.whose == "code":
        _forgive(state, found)
    now = msgspec.structs.replace(found, at=state.now, recurs=None)
    state.occurrences = [*state.occurrences, now][-KEPT:]


def whose(state: State, verdict: Diagnosed) -> Recurrence | None:
    """What is known of whose error it is. A machine is suspected only while it trains."""
    found = verdict.occurrence
    if found is None or found.recurs is None or found.cause != verdict.cause:
        return None
    if found.recurs.whose == "code":
        return found.recurs
    rank = -1 if verdict.rank is None else verdict.rank // state.workers_per_node
    node = state.nodes.get(state.ranks.get(rank, ""))
    return found.recurs if node is not None and node.name == found.nodes[0] else None


def _forgive(state: State, found: Occurrence) -> None:
    """It was counted against the nodes it came on, when that was not known."""
    key = found.signature, found.version, found.step
    same = {one.at for one in state.occurrences if (one.signature, one.version, one.step) == key}
    for node, times in state.faults.items():
        state.faults[node] = [at for at in times if at not in same]

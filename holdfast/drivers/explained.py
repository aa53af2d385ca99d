"""What explains an incident beyond its record: the end of a log, a known problem, what to do."""

from collections.abc import Sequence
from pathlib import Path

from holdfast.diagnosis.advice import advice as of_cause
from holdfast.diagnosis.signatures import Blame, Signature, spotted
from holdfast.files import open_plain
from holdfast.status import Incident

TAIL_LINES = 20
BEFORE_LINES = 200  # in which the cause is looked for of what the last ones do not explain
TAIL_BYTES = 64 * 1024


def known_problem(incident: Incident, folder: Path | None) -> Signature | None:
    """A known problem in what the rank that failed first has said: in its traceback, else in its
    last lines. Where that is general, or only a consequence of others, what it has printed before
    that and what the kernel of its node has logged may name the cause; so may the kernel of whoever
    was killed without a word. `folder`: of its job, where that is on this machine.

    An exception that is not known explains itself: a warning that was printed before it, and is
    known, need not have to do with it.
    """
    output, kernel = _collected(incident)
    before = _log(folder, incident, BEFORE_LINES) or output
    last = incident.traceback.splitlines() if incident.traceback else before[-TAIL_LINES:]
    found = [one.signature for one in spotted(last)]
    if any(one.names_a_cause for one in found) or (incident.traceback and not found):
        return found[0] if found else None
    around = [*(before if found else ()), *(kernel if found or incident.signal else ())]
    told = (one.signature for one in spotted(around) if one.signature.names_a_cause)
    general = (one for one in found if one.blame is not Blame.CONSEQUENCE)
    return next(told, None) or next(general, None)


def _collected(incident: Incident) -> tuple[Sequence[str], Sequence[str]]:
    """What was kept of the rank that failed first: its last lines, and the kernel log beside it."""
    for node in incident.collected:
        for one in node.ranks:
            if one.rank == incident.rank:
                return one.output, node.kernel
    return (), ()


def problem_fields(known: Signature) -> dict[str, str]:
    """As programs get it."""
    told = {"slug": known.slug, "blame": known.blame.value}
    return {**told, "cause": known.cause, "remedy": known.remedy}


def advice(incident: Incident) -> str:
    """What is to be done about its cause."""
    return of_cause(incident.cause, incident.signal, incident.exit_code)


def log_tail(folder: Path, incident: Incident) -> list[str]:
    """The last lines of the log of the rank that failed first; none if it is gone."""
    return _log(folder, incident, TAIL_LINES)


def _log(folder: Path | None, incident: Incident, count: int) -> list[str]:
    return last_lines(folder / incident.log, count) if folder and incident.log else []


def last_lines(path: Path, count: int, most_bytes: int = TAIL_BYTES) -> list[str]:
    """Of a log; none if it cannot be read."""
    try:
        with open_plain(path) as file:
            file.seek(max(0, file.seek(0, 2) - most_bytes))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return text.splitlines()[-count:]

"""What explains an incident beyond its record: the end of a log, a known problem, what to do."""

from pathlib import Path

from holdfast.diagnosis.advice import advice as of_cause
from holdfast.diagnosis.signatures import Blame, Signature, spotted
from holdfast.files import open_plain
from holdfast.status import Incident

TAIL_LINES = 20
TAIL_BYTES = 64 * 1024


def known_problem(incident: Incident, tail: list[str]) -> Signature | None:
    """A known problem in what the rank that failed first has printed; what is only a consequence
    of others explains nothing."""
    lines = incident.traceback.splitlines() if incident.traceback else tail
    found = [one.signature for one in spotted(lines)]
    return next((one for one in found if one.blame is not Blame.CONSEQUENCE), None)


def problem_fields(known: Signature) -> dict[str, str]:
    """As programs get it."""
    told = {"slug": known.slug, "blame": known.blame.value}
    return {**told, "cause": known.cause, "remedy": known.remedy}


def advice(incident: Incident) -> str:
    """What is to be done about its cause."""
    return of_cause(incident.cause, incident.signal, incident.exit_code)


def log_tail(folder: Path, incident: Incident) -> list[str]:
    """The last lines of the log of the rank that failed first; none if it is gone."""
    return last_lines(folder / incident.log, TAIL_LINES) if incident.log else []


def last_lines(path: Path, count: int, most_bytes: int = TAIL_BYTES) -> list[str]:
    """Of a log; none if it cannot be read."""
    try:
        with open_plain(path) as file:
            file.seek(max(0, file.seek(0, 2) - most_bytes))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return text.splitlines()[-count:]

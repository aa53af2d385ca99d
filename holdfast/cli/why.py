"""`holdfast why`: what went wrong, how one knows, what was done and what it cost."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import evidence, story
from holdfast.cli.cluster import Context, Namespace, On, reached
from holdfast.cli.controller import Where
from holdfast.cli.output import AsJson, JobName, duration, json_result, result, styled, talk
from holdfast.cli.source import job_source, lacking, tell
from holdfast.errors import Error

if TYPE_CHECKING:
    from holdfast.diagnosis.signatures import Signature
    from holdfast.status import Incident, JobStatus


def why(
    name: JobName = None,
    which: Annotated[
        int | None, typer.Argument(help="Which incident. Default: the last.", metavar="[N]", min=1)
    ] = None,
    number: Annotated[int | None, typer.Option("--incident", min=1, help="The same.")] = None,
    on: On = Where.LOCAL,
    context: Context = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Explain an incident, by default the last, or what the job is waiting for."""
    name, number = _meant(name, which or number)
    with job_source(name, reached(on, context, namespace)) as source:
        status = source.status()
        found, troubles = source.incidents(), source.troubles()
        incident = _chosen(found, number, status.job, source.words)
        tail = _tail(source.folder, incident) if incident and source.folder else []
        known = _known(incident, source.folder)
        if as_json:
            told = _fields(status, incident, tail, known)
            json_result({**told, "incomplete": lacking(troubles)})
        elif incident is None:
            result(_quiet(status))
        else:
            _print(status, incident, len(found), tail, source.words, known)
        tell(troubles)


def _meant(name: str | None, number: int | None) -> tuple[str | None, int | None]:
    """`holdfast why 2` means an incident of the newest job, unless a job here has that name."""
    from holdfast.drivers.records import job_dir

    if name is None or number is not None or not name.isdecimal() or job_dir(name).exists():
        return name, number
    return None, int(name)


def _chosen(found: "list[Incident]", number: int | None, job: str, words: str) -> "Incident | None":
    if number is None:
        return found[-1] if found else None
    for incident in found:
        if incident.id == number:
            return incident
    raise Error(
        "incident-not-found",
        f"job {job} has no incident {number}",
        why=f"it has {len(found)}" if found else "it has no incidents",
        help=f"holdfast incidents {job}{words}",
    )


def _known(incident: "Incident | None", folder: Path | None) -> "Signature | None":
    from holdfast.drivers.explained import known_problem

    return None if incident is None else known_problem(incident, folder)


def _fields(
    status: "JobStatus", incident: "Incident | None", tail: list[str], known: "Signature | None"
) -> dict[str, Any]:
    from holdfast.drivers.explained import advice, problem_fields

    return {
        "job": status.job,
        "phase": status.phase,
        "outcome": status.outcome,
        "why": status.why,
        "waiting_for": status.waiting_for,
        "incident": incident,
        "log_tail": tail,
        "known_problem": None if known is None else problem_fields(known),
        "advice": advice(incident) if incident is not None else None,
        "notes": status.notes,
    }


def _quiet(status: "JobStatus") -> str:
    """A job without incidents: what it does."""
    lines = [f"{status.job} has had no incidents: {story.headline(status)}"]
    lines += [f"why: {status.why}"] if status.why else []
    lines += [f"waiting for: {status.waiting_for}"] if status.waiting_for else []
    lines += [f"spares: {status.spares_why}"] if status.spares_why else []
    notes = [f"note: {text}" for text in story.notes(status)]
    health = [f"health: {text}" for text in story.troubles(status)]
    return "\n".join([*lines, story.training(status), *notes, *health])


def _print(
    status: "JobStatus",
    incident: "Incident",
    of: int,
    tail: list[str],
    words: str,
    known: "Signature | None" = None,
) -> None:
    from holdfast.drivers.explained import advice

    result(styled(f"incident {incident.id} of {of}: {incident.summary}", "bold"))
    result(f"  cause  {story.verdict(incident)}; {story.place(incident)}")
    result(f"  when   {story.began(incident)}, {_length(status, incident)}")
    if status.updates:
        result(f"  code   version {incident.version}; now {story.version(status)}")
    if story.followers(incident):
        result(f"  ranks  {story.followers(incident)}")
    if known is not None:
        result(f"  known  {known.slug} ({known.blame}): {known.cause}")
    for text in incident.health:
        result(f"  health {text}")
    for text in incident.network:
        result(f"  reach  {text}")
    for text in story.course(incident):
        result(f"  {text}")
    result(f"  cost   {story.bill(incident)}")
    if help_ := known.remedy if known is not None else advice(incident):
        result(f"  help   {help_}")
    result(f"  now    {story.headline(status, words)}")
    if reason := _reason(status, incident):
        result(f"  why    {reason}")
    if status.waiting_for and status.phase == "waiting":
        result(f"  waits  for {status.waiting_for}")
    for text in story.notes(status):
        result(f"  note   {text}")
    for text in story.troubles(status):
        result(f"  health {text}")
    if words and incident.rank is not None and not incident.traceback:
        talk(f"  (what it printed: holdfast logs {status.job}{words} --rank {incident.rank})")
    else:
        print_evidence(incident, tail)
    for line in evidence.nodes(incident, with_output=not tail):
        result(line)


def _reason(status: "JobStatus", incident: "Incident") -> str | None:
    """Why the job is where it is, unless this incident says so, or it simply trains."""
    said = {f"attempt {status.attempt} trains", *(done.reason for done in incident.actions)}
    return None if status.why in said else status.why


def print_evidence(incident: "Incident", tail: list[str]) -> None:
    """Who stood where in a hang; the traceback of the rank that failed first, as it is, or the end
    of its log."""
    if incident.evidence:
        heading = "stacks" if incident.cause == "hang" else "evidence"
        result(f"\n{heading}:\n" + "\n".join(f"  {line}" for line in incident.evidence))
    if incident.traceback:
        result(f"\ntraceback of rank {incident.rank}:\n{story.traceback(incident.traceback)}")
    elif tail and not incident.evidence:
        result(f"\nlast lines of {incident.log}:\n" + "\n".join(tail))
    elif not (incident.evidence or incident.collected):
        talk("  (no worker failed by itself, or it printed nothing)")


def _tail(folder: Path, incident: "Incident") -> list[str]:
    from holdfast.drivers.explained import log_tail

    return log_tail(folder, incident)


def _length(status: "JobStatus", incident: "Incident") -> str:
    if incident.ended_at is None:
        return "not over" if status.outcome is None else "it ended the job"
    lasted = incident.ended_at - incident.started_at
    if incident.overtaken:
        return story.overtaken(lasted)
    return f"training again after {duration(lasted)}"

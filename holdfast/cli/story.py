"""Sentences about a job: its status, its incidents and its end, as a person reads them at night.

Pure text from the shapes of `holdfast.status`; who prints them, and where, is decided elsewhere.
"""

import shlex
import time
from typing import TYPE_CHECKING

from holdfast.cli.output import count, duration

if TYPE_CHECKING:
    from holdfast.controller import IncidentRecord
    from holdfast.status import Choice, Goodput, Incident, JobStatus, TierStatus, UpdateStatus

_OURS = ("/holdfast/train/", "/holdfast/checkpoint/")


def clock(at: float) -> str:
    """Seconds since the epoch as local time of day."""
    return time.strftime("%H:%M:%S", time.localtime(at))


def began(incident: "Incident") -> str:
    """When, by the clock of the wall, as all logs have it."""
    return clock(incident.started_at + incident.ahead_s)


def share(part: float) -> str:
    """A share as a percentage."""
    return f"{part * 100:.1f} %"


def place(incident: "Incident | IncidentRecord") -> str:
    """Where it happened."""
    rank = f"rank {incident.rank} on " if incident.rank is not None else ""
    step = f", step {incident.step}" if incident.step is not None else ""
    where = ", ".join(dict.fromkeys((incident.node, *incident.nodes)))
    return f"{rank}{where}, attempt {incident.attempt}{step}"


def opened(incident: "IncidentRecord") -> str:
    """One line: what happened, where, and what is done about it."""
    done = [measure(a.action, a.reason, incident.summary) for a in incident.actions]
    told = "; ".join(text for text in dict.fromkeys(done) if text)
    what = f"incident {incident.id}: {incident.summary.rstrip('.')} ({place(incident)})"
    return f"{what} -> {told}" if told else what


def verdict(incident: "Incident") -> str:
    """The cause, and how sure that is."""
    sure = incident.confidence
    return incident.cause if sure is None else f"{incident.cause} (confidence {sure * 100:.0f} %)"


def course(incident: "Incident") -> list[str]:
    """What happened one after the other: what became known, what was weighed and done, and the end;
    times since it began."""
    told: list[tuple[float, str, list[str]]] = []
    for fact in incident.facts:
        if text := _new_in(fact.text, incident.summary):
            told.append((fact.at, "done" if fact.kind == "looked" else "seen", [text]))
    if incident.detected_at and all(at != incident.detected_at for at, *_ in told):
        told.append((incident.detected_at, "seen", ["noticed"]))
    told += [(choice.at, "next", _weighed(choice, incident.summary)) for choice in incident.choices]
    for action in incident.actions:
        done = measure(action.action, action.reason, incident.summary)
        told.append((action.at, "done", [done or "stop the attempt"]))
    if incident.ended_at is not None:
        how = "the next incident begins" if incident.overtaken else "training is productive again"
        told.append((incident.ended_at, "over", [how]))
    lines = []
    for at, word, (text, *below) in sorted(told, key=lambda one: one[0]):
        lines.append(f"{word}   after {duration(max(0.0, at - incident.started_at))}: {text}")
        lines += below
    return lines


def _weighed(choice: "Choice", summary: str) -> list[str]:
    """What was done next, and below it the steps that were weighed: what they were expected to cost
    the whole job, and why they were taken or not."""
    reason = _new_in(choice.reason, summary) or choice.reason
    lines = [f"for {choice.about}: {choice.step}: {reason}"]
    for one in choice.alternatives:
        taken = one.step == choice.step
        said = _new_in(one.why, summary) or one.why
        why = "taken" if taken else f"would do: {said}" if one.sufficient else said
        lines.append(f"  {'>' if taken else ' '} {one.step:<16}{duration(one.cost_s):>9}  {why}")
    return lines


def _new_in(reason: str, summary: str) -> str:
    """A reason without what happened, which has been said."""
    for said in (f"; last: {summary}", f": {summary}", summary):
        reason = reason.removesuffix(said)
    return reason


def measure(action: str, reason: str, summary: str) -> str:
    """What was done, with its reason unless that only says again what happened."""
    why = _new_in(reason, summary)
    match action:
        case "StopAttempt":
            return ""  # goes without saying: it comes before everything else
        case "StartAttempt":
            return "restart"
        case "EndJob":
            return f"end the job: {why}" if why else "end the job"
        case _:
            return why or action


def traceback(text: str) -> str:
    """A worker's traceback as Python printed it; of an error of ours without our own frames, which
    tell nothing about the script."""
    if "\nholdfast.errors.Error: error[" not in text:
        return text.rstrip()
    kept, ours = [], False
    for line in text.rstrip().splitlines():
        if not line.startswith("    "):  # no source line of the frame before
            ours = line.startswith("  File ") and any(part in line for part in _OURS)
        if not ours:
            kept.append(line)
    return "\n".join(kept)


def closed(incident: "IncidentRecord") -> str:
    """One line: training goes on, and what it cost; or it does not."""
    lasted = (incident.ended_at or incident.started_at) - incident.started_at
    if incident.overtaken:
        return f"incident {incident.id}: {overtaken(lasted)}"
    lost = f"{count(incident.steps_lost, 'step')} lost"
    return f"incident {incident.id}: training again after {duration(lasted)}, {lost}"


def overtaken(lasted: float) -> str:
    """Of an incident that the next one has ended."""
    return f"not over when the next incident began, {duration(lasted)} later"


def notes(status: "JobStatus") -> list[str]:
    """What was noticed in training and stopped nothing, the newest last."""
    return [f"{clock(note.at)}, attempt {note.attempt}: {note.text}" for note in status.notes]


def followers(incident: "Incident") -> str:
    """One cause on top, however many ranks failed."""
    if incident.evidence and not (incident.also_failed or incident.traceback):
        return ""  # nobody failed
    if not incident.also_failed:
        return "1 rank failed" if incident.rank is not None else ""
    first = "1 rank failed first" if incident.rank is not None else "the node failed first"
    return f"{first}, {incident.also_failed} followed"


def bill(incident: "Incident") -> str:
    """What it cost, largest part first."""
    parts = sorted(incident.bill.items(), key=lambda item: -item[1])
    told = ", ".join(f"{name} {duration(s)}" for name, s in parts if s >= 0.0005)
    detail = f" ({told})" if told else ""
    return f"{duration(incident.lost_s)}, {count(incident.steps_lost, 'step')} redone{detail}"


def headline(status: "JobStatus", words: str = "") -> str:
    """Phase, attempt and the state of the controller; `words` say where, in a command."""
    text = f"{status.phase.replace('_', ' ')}, attempt {status.attempt}"
    if status.controller == "away":
        return f"{text}; its controller has died: holdfast resume {status.job}{words}"
    if status.controller == "unreachable":
        return f"{text}; its controller runs, but cannot be reached from here (as of its journal)"
    if status.controller == "starting":
        return f"{text}; its controller is being started"
    return text


def waits_for(status: "JobStatus") -> str | None:
    """What training waits for, above all a controller: without one no fault is repaired."""
    if status.controller == "away" and status.outcome is None:
        return f"its controller has died: holdfast status {status.job}"
    return status.waiting_for


def training(status: "JobStatus") -> str:
    """Step, loss and speed, as far as they are known."""
    if status.step is None:
        return _seen(status)
    parts = [f"step {status.step}" + (f" of {status.steps_total}" if status.steps_total else "")]
    if status.loss is not None:
        parts.append(f"loss {status.loss:.4f}")
    elif status.loss_is is not None:
        parts.append(f"loss {status.loss_is}")
    if status.step_time_s is not None:
        parts.append(f"{duration(status.step_time_s)} a step")
    if status.snapshot_step is not None:
        parts.append(f"snapshot of step {status.snapshot_step}{_spacing(status)}")
    return ", ".join(parts)


def time_left(status: "JobStatus") -> str:
    """Until the last step, if every step takes what the newest took; empty: not known."""
    if not status.steps_total or status.step is None or not status.step_time_s:
        return ""
    left_s = max(0, status.steps_total - status.step) * status.step_time_s
    return f"{duration(left_s)} left at {duration(status.step_time_s)} a step"


def _seen(status: "JobStatus") -> str:
    """Of a script that reports no steps: what it prints, and those of its optimizer, in this
    attempt."""
    number, each_s, parts = status.optimizer_steps, status.optimizer_step_time_s, []
    if status.printed_step is not None:
        parts.append(f"step {status.printed_step} (from its output)")
    if status.loss is not None:
        parts.append(f"loss {status.loss:.4f}")
    if number is not None:
        parts.append(f"{number:,} optimizer step{'s' if number > 1 else ''}")
    if number is not None and each_s is not None:
        parts.append(f"{duration(each_s)} each")
    ended = " (those of an optimizer are counted while it runs)" if status.outcome else ""
    return ", ".join(parts) or f"no steps reported{ended}"


def _spacing(status: "JobStatus") -> str:
    every = status.snapshot_every or 0
    return f", one each {count(every, 'step')}" if every > 1 else ""


def accounts(status: "JobStatus") -> str:
    """ETTR, wall time, incidents and restarts."""
    return (
        f"{share(status.ettr)} of {duration(status.wall_s)}, "
        f"{count(status.incidents_count, 'incident')}, {count(status.restarts_count, 'restart')}"
    )


def checkpoint(tier: "TierStatus") -> str:
    """One durable tier: what is there, how old, how often and at what cost; and what fails."""
    every = f", every {duration(tier.every_s)}" if tier.every_s is not None else ""
    parts = [f"{tier.tier}: nothing committed yet{every}"]
    if tier.step is not None and tier.age_s is not None:
        size = f"{tier.bytes / (1 << 20):.1f} MiB"
        cost = f"{duration(tier.seconds)} and {size} each"
        parts = [f"{tier.tier}: step {tier.step}, {duration(tier.age_s)} old{every}, {cost}"]
    if tier.failures:
        failed = "save" if tier.failures == 1 else f"{tier.failures} saves"
        parts.append(f"last {failed} failed: {tier.why}")
    return "; ".join(parts)


def copies(status: "JobStatus") -> str:
    """Which losses memory alone survives."""
    found = status.copies
    if found is None or status.outcome is not None:
        return ""
    text = f"any {count(found.survives, 'node')} may be lost without restoring a checkpoint"
    if found.next_loss is None or found.next_loss < 0.0005:  # what is written with three digits
        return text
    return f"{text}; {found.survives + 1} at once with probability {found.next_loss:.3f} or better"


def size(status: "JobStatus") -> str:
    """How many nodes train, of a job whose number of nodes may change, and why."""
    if status.size is None or status.outcome is not None:
        return ""
    of = "" if status.size == status.target else f" of {status.target}"
    why = f": {status.size_why}" if status.size_why else ""
    return f"{status.size}{of} nodes{why}" if of else f"{count(status.size, 'node')}{why}"


def version(status: "JobStatus") -> str:
    """What the job runs, if it was ever to be updated."""
    if not status.updates:
        return ""
    made = [one for one in status.updates if one.version == status.version and not one.back]
    return (
        f"{status.version}{_content(made[-1])}" if made else f"{status.version}: as it was started"
    )


def _content(one: "UpdateStatus") -> str:
    """What makes this version another one."""
    parts = [f"code {one.code[:12]}"] if one.code else []
    parts += [f"image {one.image}"] if one.image else []
    parts += [f"arguments {shlex.join(one.args)}"] if one.args is not None else []
    parts += [f"{key}={value}" for key, value in one.sets.items()]
    return f": {', '.join(parts)}"


def update(one: "UpdateStatus") -> str:
    """What has become of an update."""
    name, why = f"version {one.version}", f": {one.why}" if one.why else ""
    match one.stage:
        case "preparing":
            return f"{name} is being prepared"
        case "waiting" if one.when == "next-failure":
            return f"{name} waits for the next recovery, for a day at most{why}"
        case "waiting":
            return f"{name} is used from the next attempt on{why}"
        case "used" if one.attempt is not None:
            return f"{name} is used from attempt {one.attempt} on{why}"
        case stage:
            return f"{name} was {stage}{why}"


def status_lines(status: "JobStatus", words: str = "") -> list[tuple[str, str]]:
    """The answer of `holdfast status` as (label, text); an ended job has no nodes any more."""
    lines = [
        ("job", status.job),
        ("phase", headline(status, words)),
        ("why", status.why or ""),
        ("waiting for", status.waiting_for or ""),
        ("training", training(status)),
        ("size", size(status)),
        ("spares", status.spares_why or ""),
        ("version", version(status)),
        ("update", update(status.updates[-1]) if status.updates else ""),
        ("ETTR", accounts(status)),
        ("note", notes(status)[-1] if status.notes else ""),
    ]
    lines += [("checkpoint", checkpoint(tier)) for tier in status.checkpoints]
    lines += [("copies", copies(status)), ("metrics", status.metrics or "")]
    for node in status.nodes if status.outcome is None else ():
        rank = f", node rank {node.rank}" if node.rank is not None else ""
        lines.append(("node", f"{node.name}: {node.state}{rank}"))
        lines += [("", f"{one.severity}: {one.detail}") for one in node.conditions]
    return [(label, text) for label, text in lines if text]


def one_line(status: "JobStatus", words: str = "") -> str:
    """Everything in one line, for logs."""
    from holdfast.status import waiting

    waits = f", {waiting(status.waiting_for)}" if status.waiting_for else ""
    now = headline(status, words)
    return f"{status.job}: {now}, {training(status)}, ETTR {accounts(status)}{waits}"


def troubles(status: "JobStatus") -> list[str]:
    """Conditions of nodes and what to do about them, those of nodes that train first."""
    return [
        f"{node.name}, {one.severity} since {clock(one.since)}: {one.detail}; {one.advice}"
        for node in status.nodes
        for one in node.conditions
    ]


def labelled(lines: list[tuple[str, str]]) -> str:
    """Labels in a column of their own."""
    width = max(len(label) for label, _ in lines)
    return "\n".join(f"{label:<{width}}  {text}" for label, text in lines)


def ending(status: "JobStatus") -> str:
    """One line at the end of a job."""
    steps = f", {count(status.step, 'step')}" if status.step is not None else ""
    outcome = (status.outcome or status.phase).replace("_", " ")
    faults = count(status.incidents_count, "incident")
    restarts = count(status.restarts_count, "restart")
    return (
        f"{status.job} {outcome} after {duration(status.wall_s)}{steps}; "
        f"ETTR {share(status.ettr)}, {faults}, {restarts}"
    )


def bucket_rows(goodput: "Goodput") -> list[tuple[str, str, str]]:
    """Where the time went: name, length, share; the largest first, empty ones left out."""
    wall = goodput.wall_s or 1.0
    spent = sorted(goodput.buckets.items(), key=lambda item: -item[1])
    rows = [(name, f"{s:.3f}", share(s / wall)) for name, s in spent if s > 0]
    return [*rows, ("wall time", f"{goodput.wall_s:.3f}", share(1.0))]

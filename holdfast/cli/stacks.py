"""`holdfast stacks`: what every worker of a job does at this moment."""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import question
from holdfast.cli.cluster import Context, Namespace, On, reached
from holdfast.cli.controller import Where
from holdfast.cli.output import AsJson, JobName, count, json_result, result, talk
from holdfast.cli.question import Answered, JobQuestion
from holdfast.errors import Error

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.diagnosis.stacks import Branch
    from holdfast.drivers.kubernetes.api import Api
    from holdfast.messages import StacksReply
    from holdfast.stacks import StackGroup


def stacks(
    name: JobName = None,
    rank: Annotated[
        int | None,
        typer.Option("--rank", min=0, help="Only the group of this rank, with all its threads."),
    ] = None,
    native: Annotated[
        bool,
        typer.Option(
            "--native",
            help="With frames of C, as of NCCL or a driver; pauses each worker for some seconds, "
            "with --rank only that one.",
        ),
    ] = False,
    on: On = Where.LOCAL,
    context: Context = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Show the Python stacks of all workers, grouped, the rarest first."""
    asked, here = _question(native=native, rank=rank), partial(_here, native=native, rank=rank)
    told = question.ask(asked, here, name, reached(on, context, namespace))
    groups = _chosen(told.reply.groups, rank, told)
    if as_json:
        json_result({"job": told.job, "groups": groups, "missing": told.reply.missing})
    elif rank is not None:
        result("\n".join(_whole(groups[0])))
    else:
        result("\n".join(_overview(told.job, groups)))
    _tell_missing(told.reply)


def _here(folder: "Path", *, native: bool, rank: int | None) -> "StacksReply":
    from holdfast.drivers import client

    return client.stacks(folder, native=native, rank=rank)


def _question(*, native: bool, rank: int | None) -> "JobQuestion[StacksReply]":
    async def there(cluster: "Api", job: str) -> "StacksReply | None":
        from holdfast.drivers.kubernetes.published_stacks import ask_for_stacks

        return await ask_for_stacks(cluster, job, native=native, rank=rank)

    why = "stacks are taken from running workers, which the controller asks for"
    return JobQuestion(there, why, question.what_happened)


def _chosen(
    groups: "tuple[StackGroup, ...]", rank: int | None, told: "Answered[StacksReply]"
) -> "tuple[StackGroup, ...]":
    from holdfast.events import each_of

    found = tuple(one for one in groups if rank is None or rank in each_of(one.ranks))
    if found or rank is None:
        return found
    raise Error(
        "rank-not-found",
        f"rank {rank} of job {told.job} has no running worker",
        why=f"{count(sum(one.count for one in groups), 'rank', 'ranks')} answered"
        if groups
        else "no rank of that number answered",
        help=f"holdfast stacks {told.job}{told.words}   (all running workers)",
    )


def _overview(job: str, groups: "tuple[StackGroup, ...]") -> Iterator[str]:
    from holdfast.diagnosis.stacks import tree
    from holdfast.stacks import in_words

    read = [one for one in groups if one.threads]
    ranks = sum(one.count for one in groups)
    if not ranks:
        yield f"{job}: no worker is running"
        return
    yield f"{job}: {count(ranks, 'rank', 'ranks')} at {count(len(groups), 'place', 'places')}"
    if read:
        yield from _lines(tree(read), "")
    for one in groups:
        if one.why:
            no = "" if one.threads else "no stack: "
            yield f"{_ranks(one)} ({in_words(one.ranks)}): {no}{one.why}"


def _lines(branch: "Branch", indent: str) -> Iterator[str]:
    from holdfast.stacks import in_words

    for frame in branch.frames:
        yield f"{indent}{frame}"
    for one in branch.ended:
        yield f"{indent}  = {_ranks(one)} ({in_words(one.ranks)}){_state(one)}"
    for way in branch.below:
        yield from _lines(way, indent + "  " * bool(branch.frames))


def _state(group: "StackGroup") -> str:
    """What is not to be expected of a worker that trains."""
    return f", {group.state}" if group.state not in ("running", "sleeping", "") else ""


def _ranks(group: "StackGroup") -> str:
    return count(group.count, "rank", "ranks")


def _whole(group: "StackGroup") -> Iterator[str]:
    from holdfast.stacks import in_words

    yield f"{_ranks(group)} ({in_words(group.ranks)}){_state(group)}"
    if group.why:
        yield f"  {group.why}" if group.threads else f"  no stack: {group.why}"
    for thread in group.threads:
        marks = ", active" * thread.active + ", holds the GIL" * thread.holds_gil
        yield f"  thread {thread.name or '(no name)'} of process {thread.pid}{marks}"
        yield from (f"    {frame}" for frame in thread.frames)


def _tell_missing(reply: "StacksReply") -> None:
    if reply.missing:
        shown = ", ".join(reply.missing[:5]) + (", ..." if len(reply.missing) > 5 else "")
        nodes = count(len(reply.missing), "node", "nodes")
        talk(f"{nodes} did not answer: {shown}")

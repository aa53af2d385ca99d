"""`holdfast replay`: repeat a step from a checkpoint, here, elsewhere, or on groups of nodes, and
compare bit for bit.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.cluster import Context, Namespace, reached
from holdfast.cli.controller import Where
from holdfast.cli.isolate import isolate as find_bad
from holdfast.cli.locate import job_folder
from holdfast.cli.output import AsJson, JobName, json_result, result, talk
from holdfast.errors import Error, ExitStatus

if TYPE_CHECKING:
    from holdfast.cli.repetitions import RepeatedStep
    from holdfast.diagnosis.repetition import Repetition
    from holdfast.digests import StepsToRepeat


def replay(
    step: Annotated[int, typer.Option("--step", min=1, help="The step to repeat, from 1.")],
    name: JobName = None,
    on: Annotated[
        list[str] | None,
        typer.Option(
            "--on",
            metavar="NODE[,NODE...]|kubernetes",
            help="Repeat it once more on these nodes instead of the job's, and compare. "
            "`kubernetes`: of a job in a cluster. Repeatable.",
        ),
    ] = None,
    isolate: Annotated[
        bool,
        typer.Option(
            "--isolate",
            help="Repeat it on groups of the job's nodes (or those of --on), until it is known in "
            "which nodes the fault is.",
        ),
    ] = False,
    unit: Annotated[
        int,
        typer.Option("--unit", min=1, help="Nodes of one data-parallel replica, for --isolate."),
    ] = 1,
    context: Context = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Repeat a step from a checkpoint before it: is it the data, a passing fault, or a machine?
    Exit status 1 if repetitions differ, or a node is found to be bad."""
    where, named = _divided(on)
    if (reach := reached(where, context, namespace)) is not None:
        from holdfast.cli.replay_there import replay_there

        replay_there(reach, name, _wish(step, unit, named, isolate=isolate), as_json=as_json)
        return
    from holdfast.cli.repetitions import wanted

    folder = job_folder(name)
    what = wanted(folder, step)
    members, others = _members(folder, what.job.nodes.count), _local(named)
    if isolate:
        find_bad(what, others or members, unit, as_json=as_json)
        return
    talk(f"{what.job.name}: repeating step {step} from the checkpoint of step {what.from_step}")
    found = _judged(folder, what, members, others)
    if as_json:
        head = {"job": what.job.name, "step": step, "from_step": what.from_step}
        json_result({**head, **found._asdict()})
    else:
        result(f"{found.verdict}: {found.summary}")
    if found.verdict in ("machine", "elsewhere"):
        talk("help: holdfast check   (on each of these machines)")
        raise typer.Exit(ExitStatus.JOB_FAILED)


def _judged(
    folder: Path, what: "RepeatedStep", members: list[str], others: list[str]
) -> "Repetition":
    """Twice in place, and then elsewhere if anywhere."""
    from holdfast.agent.metrics_file import logged_steps
    from holdfast.cli.repetitions import run
    from holdfast.diagnosis.repetition import compared_elsewhere, judge_repetition

    first, again = (run(what, f"repetition {number}", members) for number in (1, 2))
    told = logged_steps(folder / "metrics.jsonl", what.from_step, what.step)
    digests, logs = (first.digests, again.digests), (told, again.logged)
    found = judge_repetition(what.step, digests, logs)
    if not others:
        return found
    nodes = list(_as_many(others, len(members)))
    there = run(what, f"the repetition on {', '.join(others)}", nodes)
    return compared_elsewhere(found, ", ".join(others), again.digests, there.digests)


def _members(folder: Path, count: int) -> list[str]:
    """Names of the nodes that train, or have trained, by their rank."""
    from holdfast.drivers.records import state_of

    state = state_of(folder)
    there = [state.nodes[node].name for _, node in sorted(state.ranks.items())]
    return there if len(there) == count else [f"node-{number}" for number in range(count)]


def _divided(on: list[str] | None) -> tuple[Where, list[str]]:
    """Where the job is, and the nodes that are named."""
    words = [word for text in on or () for word in text.split(",")]
    places = [word for word in words if word in set(Where)]
    usual = os.environ.get("HOLDFAST_ON", Where.LOCAL)
    where = places[-1] if places else usual if usual in set(Where) else Where.LOCAL
    return Where(where), list(dict.fromkeys(word for word in words if word not in set(Where)))


def _wish(step: int, unit: int, others: list[str], *, isolate: bool) -> "StepsToRepeat":
    import secrets

    from holdfast.digests import StepsToRepeat

    if isolate and others:
        raise Error(
            "usage",
            "--isolate takes no nodes of a job in a cluster",
            why="its groups consist of the nodes that train",
            help="holdfast replay NAME --step K --isolate --on kubernetes",
        )
    return StepsToRepeat(
        step=step,
        unit=unit,
        isolate=isolate,
        others=tuple(others),
        id=secrets.token_hex(8),
        by="holdfast replay",
    )


def _local(named: list[str]) -> list[str]:
    """Names of nodes here. Raises `Error` usage."""
    import re

    for one in named:
        if re.fullmatch(r"node-[0-9]+", one) is None:
            raise Error(
                "usage",
                f"{one!r} is not a node of a job on this machine",
                why="they are called node-0, node-1 and so on",
                help="holdfast status NAME   (its nodes; of a job in a cluster: --on kubernetes)",
            )
    return named


def _as_many(nodes: list[str], count: int) -> Iterator[str]:
    """So many, each on one of these: `node-3`, then `node-3-1`, where there are too few."""
    for number in range(count):
        turn, place = divmod(number, len(nodes))
        yield f"{nodes[place]}-{turn}" if turn else nodes[place]

"""`holdfast replay --on kubernetes`: the nodes of a job in a cluster repeat a step.

Its controller stops training at the end of a step, has its nodes do that, and goes on. So the job
has to run, and stands still for as long as the repetition takes.
"""

from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.cli import question
from holdfast.cli.cluster import Reach
from holdfast.cli.output import json_result, result, talk
from holdfast.cli.question import JobQuestion
from holdfast.errors import Error, ExitStatus

if TYPE_CHECKING:
    from holdfast.digests import StepsToRepeat
    from holdfast.messages import ReplayReply

WHY = "nodes repeat a step when the controller says so, between two attempts"


def replay_there(reach: Reach, name: str | None, wish: "StepsToRepeat", *, as_json: bool) -> None:
    """Ask, show, and exit with status 1 if a machine is bad. Raises `Error`."""
    import typer

    from holdfast.drivers.kubernetes.published_stacks import ask_for_replay

    talk(f"repeating step {wish.step}: training is paused until that is done")
    asked = JobQuestion(partial(ask_for_replay, wish=wish), WHY, question.what_happened)
    job, words, told = question.ask_there(asked, name, reach)
    if told.refused:
        raise Error(
            "replay-failed",
            f"step {wish.step} of job {job} was not repeated",
            why=told.refused,
            help=f"holdfast why {job}{words}   (the job continues)",
        )
    if as_json:
        json_result({"job": job, "step": wish.step, **_fields(told)})
    else:
        result(f"{told.verdict}: {told.summary}" if told.verdict else told.summary)
    if told.nodes or told.verdict in ("machine", "elsewhere"):
        talk("help: holdfast check   (on each of these machines)")
        raise typer.Exit(ExitStatus.JOB_FAILED)


def _fields(told: "ReplayReply") -> dict[str, Any]:
    import msgspec

    fields: dict[str, Any] = msgspec.to_builtins(told)
    return {key: value for key, value in fields.items() if key not in ("type", "refused")}

"""`holdfast replay --isolate`: repeat a step on groups of nodes, until the bad ones are known.

Which groups is planned by `diagnosis.group_testing`, what became of them judged by
`diagnosis.repetition`; here they run, one after the other, because they share this machine. A group
of a size that no other has is run twice: there is nothing else that it could be compared with.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from holdfast.cli.output import count, json_result, result, talk
from holdfast.errors import Error, ExitStatus

if TYPE_CHECKING:
    from holdfast.cli.repetitions import Digests, RepeatedStep
    from holdfast.diagnosis.group_testing import Group, Located

Repeat = Callable[["Group"], "Digests | None"]  # None: it did not come to the end of the step


def isolate(what: "RepeatedStep", nodes: Sequence[str], unit: int, *, as_json: bool) -> None:
    """Find them, and say so; exit status 1 if there are any. Raises `Error`."""
    import typer

    if len(nodes) % unit:
        raise Error(
            "usage",
            f"{count(len(nodes), 'node is', 'nodes are')} not whole replicas of {unit} nodes each",
            why="a group consists of whole data-parallel replicas",
            help="holdfast replay --isolate --unit NODES   (of one replica; a divisor)",
        )
    found, rounds = located(nodes, unit, lambda group: _repeated(what, group))
    if as_json:
        head = {"job": what.job.name, "step": what.step, "from_step": what.from_step}
        json_result({**head, **found._asdict(), "rounds": rounds})
    else:
        result(found.text)
    if found.nodes:
        raise typer.Exit(ExitStatus.JOB_FAILED)


def located(nodes: Sequence[str], unit: int, repeat: Repeat) -> "tuple[Located, int]":
    """The bad nodes, and how many rounds of groups that took."""
    from holdfast.diagnosis.group_testing import TryGroups, next_step
    from holdfast.diagnosis.repetition import failing

    tried: dict[Group, list[Digests | None]] = {}
    rounds = 0
    while isinstance(step := next_step(nodes, unit, failing(tried)), TryGroups):
        rounds += 1
        for group in step.groups:
            tried[group] = [repeat(group)]
        sizes = Counter(map(len, tried))
        for group in step.groups:
            if sizes[len(group)] == 1:
                tried[group].append(repeat(group))
    return step, rounds


def _repeated(what: "RepeatedStep", group: "Group") -> "Digests | None":
    from holdfast.cli.repetitions import run

    talk(f"repeating step {what.step} on {', '.join(group)}")
    try:
        return run(what, f"the repetition on {', '.join(group)}", group).digests
    except Error as error:
        if error.slug != "replay-failed":
            raise
        talk(f"{error.what}: {error.why}")
        return None

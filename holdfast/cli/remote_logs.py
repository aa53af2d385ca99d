"""The output of a job's workers from the logs of its pods, as the lines that logs of files give."""

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

from holdfast.cli.cluster import Session
from holdfast.cli.tail import Line

if TYPE_CHECKING:
    from holdfast.drivers.kubernetes.remote_logs import Printed


def shown(session: Session, name: str | None, *, follow: bool, rank: int | None) -> Iterator[Line]:
    """Lines of the workers, or of one; what agents say of themselves is left out."""
    from holdfast.drivers.kubernetes.remote import newest

    job = name or session.do(newest(session.cluster, session.words))
    printed = _followed(session, job) if follow else _written(session, job)
    for line in printed:
        if line.rank is not None and rank in (None, line.rank):
            yield Line(None, line.rank, line.text)


def _written(session: Session, job: str) -> "Iterator[Printed]":
    from holdfast.drivers.kubernetes.remote import look
    from holdfast.drivers.kubernetes.remote_logs import written

    seen = session.do(look(session.cluster, job, session.words), f"job {job}")
    for pod in sorted(seen.nodes, key=lambda pod: (len(pod.metadata.name), pod.metadata.name)):
        yield from _stepped(
            session, written(session.cluster, pod), f"the log of {pod.metadata.name}"
        )


def _followed(session: Session, job: str) -> "Iterator[Printed]":
    from holdfast.drivers.kubernetes.remote_logs import Following

    lines = Following(session.cluster, job, session.words).lines()
    yield from _stepped(session, lines, f"the logs of {job}")


def _stepped(session: Session, lines: "AsyncIterator[Printed]", what: str) -> "Iterator[Printed]":
    """An asynchronous iterator, one step of the loop at a time."""

    async def step() -> "Printed | None":
        return await anext(lines, None)

    while (line := session.do(step(), what)) is not None:
        yield line

"""The output of a job's workers from the logs of its pods, as the lines that logs of files give."""

import asyncio
from collections.abc import AsyncIterator, Generator
from typing import TYPE_CHECKING

from holdfast.cli.cluster import Session
from holdfast.cli.output import talk
from holdfast.cli.tail import Line
from holdfast.errors import Error

if TYPE_CHECKING:
    from holdfast.drivers.kubernetes.remote import Look
    from holdfast.drivers.kubernetes.remote_logs import Printed

    Step = asyncio.Task[Printed | None]


QUIET_S = 0.5  # after which it is said that nothing comes


def shown(
    session: Session,
    name: str | None,
    *,
    follow: bool,
    rank: int | None,
    since: float | None = None,
) -> Generator[Line | None]:
    """Lines of the workers, or of one; what agents say of themselves is left out. In plain mode
    there are no agents, and each line has the name of its pod. Following, None is a quiet moment.
    """
    from holdfast.drivers.kubernetes.remote import look, newest
    from holdfast.drivers.kubernetes.remote_logs import Following, everything

    job = name or session.do(newest(session.cluster, session.words))
    seen = session.do(look(session.cluster, job, session.words), f"job {job}")
    plain = _plain(seen)
    if plain and rank is not None:
        raise _rankless(job)
    lines = (
        Following(session.cluster, job, session.words, talk, since).lines()
        if follow
        else everything(session.cluster, seen, talk, since)
    )
    for line in _stepped(session, lines, f"the logs of {job}", QUIET_S if follow else None):
        if line is None:
            yield None
        elif plain:
            yield Line(None, line.rank, line.text, line.pod)
        elif line.rank is not None and rank in (None, line.rank):
            yield Line(None, line.rank, line.text)


def _plain(seen: "Look") -> bool:
    """Whether the user's program prints by itself: there is neither job file nor record."""
    return seen.file is None and seen.record is None


def _rankless(job: str) -> Error:
    return Error(
        "usage",
        "--rank applies to managed jobs only",
        why=f"{job} runs in plain mode, where log lines are not prefixed with the rank",
        help=f"holdfast logs {job} --on kubernetes   (each line with its pod)",
    )


def _stepped(
    session: Session, lines: "AsyncIterator[Printed]", what: str, quiet_s: float | None
) -> "Generator[Printed | None]":
    """An asynchronous iterator, one step of the loop at a time; None: nothing came for so long."""

    async def step() -> "Printed | None":
        return await anext(lines, None)

    async def waited(coming: "Step | None") -> "tuple[Step | None, Printed | None]":
        """The next line or, after a quiet moment, the step that still waits for it."""
        if quiet_s is None:
            return None, await step()
        task = coming or asyncio.ensure_future(step())
        try:
            done, _ = await asyncio.wait({task}, timeout=quiet_s)
        except asyncio.CancelledError:  # Ctrl-C
            await _given_up(task)
            raise
        return (None, await task) if done else (task, None)

    coming: Step | None = None
    try:
        while True:
            coming, line = session.do(waited(coming), what)
            if coming is None and line is None:
                return
            yield line
    finally:
        if coming is not None:
            session.do(_given_up(coming))


async def _given_up(task: "Step") -> None:
    """What it reads is closed by itself, before the connection is."""
    task.cancel()
    await asyncio.wait({task})

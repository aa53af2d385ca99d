"""A question to a job in a cluster: by a word on its ConfigMap, which its controller answers."""

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from holdfast.cli.cluster import Reach, connected
from holdfast.errors import Error

if TYPE_CHECKING:
    from holdfast.drivers.kubernetes.api import Api

Reply = TypeVar("Reply")


class Answered(NamedTuple, Generic[Reply]):
    """What a job said; `words` mean the same job in another command."""

    job: str
    words: str
    reply: Reply


def ask(
    reach: Reach,
    name: str | None,
    question: "Callable[[Api, str], Coroutine[Any, Any, Reply | None]]",
    not_running: Callable[[str, str], Error],
) -> Answered[Reply]:
    """Ask the controller of this job, or of the newest. Raises `Error`; `not_running` makes it of
    the job and the words that mean it."""
    from holdfast.drivers.kubernetes.remote import look, newest, require_managed

    with connected(reach) as session:
        cluster, words = session.cluster, session.words
        job = name or session.do(newest(cluster, words))
        seen = session.do(look(cluster, job, words))
        require_managed(seen, words)
        there = f" --on kubernetes{words}"
        if seen.outcome is not None or not seen.kept:
            raise not_running(job, there)
        reply = session.do(question(cluster, job), f"ConfigMap {job}-job")
    if reply is None:
        raise Error(
            "controller-silent",
            f"the controller of {job} does not answer",
            why="it reads requests in the cluster, and has answered none in time",
            help=f"kubectl get pods -l holdfast.dev/job={job},holdfast.dev/role=controller",
        )
    return Answered(job, there, reply)

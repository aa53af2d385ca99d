"""A question that only the controller of a job can answer: asked over its socket here, and in a
cluster by a word on the job's ConfigMap.
"""

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from holdfast.cli.cluster import Reach, connected
from holdfast.cli.locate import job_folder
from holdfast.errors import Error

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.drivers.kubernetes.api import Api

Reply = TypeVar("Reply")


class Answered(NamedTuple, Generic[Reply]):
    """What a job said; `words` mean the same job in another command."""

    job: str
    words: str
    reply: Reply


class JobQuestion(NamedTuple, Generic[Reply]):
    """How it is asked in a cluster, what the controller is needed for, and what helps where none
    runs, given the job and the words that mean it in another command."""

    there: "Callable[[Api, str], Coroutine[Any, Any, Reply | None]]"
    why: str
    remedy: Callable[[str, str], str]

    def not_running(self, job: str, words: str) -> Error:
        """Nobody can answer."""
        return Error(
            "job-not-running",
            f"no controller is running for job {job}",
            why=self.why,
            help=self.remedy(job, words),
        )


def what_happened(job: str, words: str) -> str:
    """A remedy that fits everywhere."""
    return f"holdfast why {job}{words}   (what happened last)"


def ask(
    question: JobQuestion[Reply],
    here: "Callable[[Path], Reply]",
    name: str | None,
    reach: Reach | None,
) -> Answered[Reply]:
    """The controller of this job, or of the newest, in a cluster or `here`. Raises `Error`."""
    if reach is not None:
        return ask_there(question, name, reach)
    from holdfast.drivers.records import controller_alive, controller_silent

    folder = job_folder(name)
    if not controller_alive(folder):
        raise question.not_running(folder.name, "")
    try:
        return Answered(folder.name, "", here(folder))
    except ConnectionError as error:
        raise controller_silent(folder.name) from error


def ask_there(question: JobQuestion[Reply], name: str | None, reach: Reach) -> Answered[Reply]:
    """Likewise, in a cluster."""
    from holdfast.drivers.kubernetes.remote import look, newest, require_managed

    with connected(reach) as session:
        cluster, words = session.cluster, session.words
        job = name or session.do(newest(cluster, words))
        seen = session.do(look(cluster, job, words))
        require_managed(seen, words)
        there = f" --on kubernetes{words}"
        if seen.outcome is not None or not seen.kept:
            raise question.not_running(job, there)
        reply = session.do(question.there(cluster, job), f"ConfigMap {job}-job")
    if reply is None:
        raise Error(
            "controller-silent",
            f"the controller of {job} does not answer",
            why="it reads requests in the cluster, and has answered none in time",
            help=f"kubectl get pods -l holdfast.dev/job={job},holdfast.dev/role=controller",
        )
    return Answered(job, there, reply)

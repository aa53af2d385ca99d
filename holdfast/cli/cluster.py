"""`--on kubernetes`, `--context` and `--namespace`: which cluster a command means, and a way there.

The same three options, with the same variables, on every verb that knows clusters. A `Session` runs
coroutines one by one, so that verbs stay plain functions; what the cluster refuses becomes an
`Error`. The client is imported when a cluster is first asked, never for a local job.
"""

import os
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import typer

from holdfast.cli.controller import Where
from holdfast.errors import Error, shown

if TYPE_CHECKING:
    import asyncio

    from holdfast.drivers.kubernetes.api import Api

T = TypeVar("T")

On = Annotated[
    Where,
    typer.Option(
        "--on",
        envvar="HOLDFAST_ON",
        help="Where the job is: local, kubernetes; ray, with its record on this machine.",
    ),
]
Context = Annotated[
    str | None,
    typer.Option(
        "--context",
        envvar="HOLDFAST_CONTEXT",
        help="Context of the kubeconfig. Default: the current one.",
        show_default=False,
    ),
]


def namespace_named(value: str | None) -> str | None:
    """The namespace of an option, by the rule of the job file. Raises `Error` usage."""
    if not value:
        return None
    import re

    from holdfast.spec.section import OBJECT_PATTERN

    if re.fullmatch(OBJECT_PATTERN.rstrip("$"), value) is None:
        raise Error(
            "usage",
            f"{shown(value)} is not a valid namespace",
            why="names in Kubernetes consist of lower-case letters, digits, `-` and `.`",
            help="kubectl get namespaces",
        )
    return value


Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        envvar="HOLDFAST_NAMESPACE",
        callback=namespace_named,
        help="Namespace. Default: the namespace of the context.",
        show_default=False,
    ),
]


class Reach(NamedTuple):
    """Which cluster."""

    context: str | None
    namespace: str | None

    @property
    def words(self) -> str:
        """What has to be added to a command, after `--on kubernetes`, to mean the same cluster."""
        given = (
            ("--context", self.context, "HOLDFAST_CONTEXT"),
            ("-n", self.namespace, "HOLDFAST_NAMESPACE"),
        )
        told = (f" {f} {v}" for f, v, name in given if v and v != os.environ.get(name))
        return "".join(told)


def reached(on: Where, context: str | None, namespace: str | None) -> Reach | None:
    """The cluster that the options name; None for this machine. Raises `Error` usage."""
    if on is Where.KUBERNETES:
        return Reach(context, namespace)
    reach = Reach(context, namespace)
    if reach.words:
        raise Error(
            "usage",
            f"{reach.words.strip()} is for jobs on Kubernetes",
            why="without --on kubernetes a command refers to a job on this machine",
            help="add --on kubernetes   (or set HOLDFAST_ON=kubernetes)",
        )
    return None


class Session:
    """A cluster that answers, and a loop in which it is asked."""

    def __init__(self, runner: "asyncio.Runner", cluster: "Api", reach: Reach) -> None:
        self._runner = runner
        self.cluster = cluster
        self.words = reach.words

    def do(self, call: Coroutine[Any, Any, T], what: str = "the cluster") -> T:
        """Wait for a call. `what` it is about, for the message if it is refused. Raises `Error`."""
        from holdfast.drivers.kubernetes.cluster import ApiError
        from holdfast.drivers.kubernetes.submit_refusals import About, refused

        try:
            return self._runner.run(call)
        except ApiError as error:
            of = About(what, "v1", self.cluster.namespace, self.words)
            raise refused(error, of) from error


@contextmanager
def connected(reach: Reach) -> Iterator[Session]:
    """A session with the cluster. Raises `Error` if there is no client, context or answer."""
    import asyncio

    opened = client()
    with asyncio.Runner() as runner:
        cluster = runner.run(opened(reach.context, reach.namespace))
        try:
            yield Session(runner, cluster, reach)
        finally:
            runner.run(cluster.close())


def client() -> Any:
    """What opens a cluster. Raises `Error` kubernetes-missing."""
    try:
        from holdfast.drivers.kubernetes.api import opened
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] not in ("httpx2", "lightkube"):
            raise
        raise Error(
            "kubernetes-missing",
            "no Kubernetes client is installed",
            why=f"the package {exc.name} is not installed",
            help="pip install 'holdfast[kubernetes]'",
        ) from None
    return opened

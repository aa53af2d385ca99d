"""`holdfast operator`: what the operator's Deployment runs."""

import os
from typing import Annotated

import typer

from holdfast.cli.output import talk
from holdfast.errors import Error

PROBES = 8081


def operator(
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace", "-n", help="Namespace to watch. Default: the namespace of the context."
        ),
    ] = None,
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="Watch all namespaces.")
    ] = False,
    context: Annotated[
        str | None, typer.Option("--context", help="Context of the kubeconfig.")
    ] = None,
    check_image: Annotated[
        str,
        typer.Option(
            "--check-image",
            envvar="HOLDFAST_CHECK_IMAGE",
            help="Image with Holdfast and PyTorch, in which cordoned machines are checked.",
        ),
    ] = "",
    port: Annotated[int, typer.Option("--port", help="Port for /live and /ready.")] = PROBES,
) -> None:
    """Run the operator for TrainingJobs, until SIGTERM. See docs/guides/operate.md for its
    installation."""
    if namespace is not None and all_namespaces:
        raise Error(
            "usage",
            "--namespace and --all-namespaces are mutually exclusive",
            why="the operator watches one namespace or all of them",
            help="holdfast operator --all-namespaces",
        )
    import asyncio

    try:
        asyncio.run(_operate(context, namespace, all_namespaces, check_image, port))
    except asyncio.CancelledError:
        return


async def _operate(
    context: str | None, namespace: str | None, everywhere: bool, check_image: str, port: int
) -> None:
    from holdfast.drivers.kubernetes.api import opened
    from holdfast.operator.loop import EVERYWHERE, Operator, operate
    from holdfast.operator.probe import serve_probes

    _end_at_signals()
    cluster = await opened(context, namespace or os.environ.get("HOLDFAST_NAMESPACE"))
    try:
        where = EVERYWHERE if everywhere else cluster.namespace
        made = Operator(cluster, where, check_image)
        await serve_probes(port, lambda: made.ready)
        talk(f"watching {'all namespaces' if everywhere else cluster.namespace}")
        await operate(cluster, made, _me())
        talk("the lease was lost: another replica takes over")
    finally:
        await cluster.close()


def _me() -> str:
    return os.environ.get("HOSTNAME") or f"pid-{os.getpid()}"


def _end_at_signals() -> None:
    """SIGTERM gives the lease back, so that the next copy need not wait for its end."""
    import asyncio
    import signal

    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)

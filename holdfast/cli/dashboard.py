"""`holdfast dashboard`: everything that is known of jobs, in a browser."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.cluster import Context, Namespace, On, Reach, reached
from holdfast.cli.controller import Where
from holdfast.cli.output import talk
from holdfast.errors import Error

if TYPE_CHECKING:
    from holdfast.dashboard.app import Serving

PORT = 8787


def dashboard(
    folder: Annotated[
        Path | None,
        typer.Argument(help="Folder with folders of jobs. Default: the jobs of this machine."),
    ] = None,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; others than loopback need a token.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0: any free one.")
    ] = PORT,
    token: Annotated[
        bool, typer.Option("--token", help="Ask for a token on loopback, too.")
    ] = False,
    cluster_tokens: Annotated[
        bool,
        typer.Option(
            "--cluster-tokens",
            help="Accept tokens of the cluster that may read ConfigMaps and logs.",
        ),
    ] = False,
    on: On = Where.LOCAL,
    context: Context = None,
    namespace: Namespace = None,
) -> None:
    """Serve a page with the jobs of this machine, of a folder, or of a cluster."""
    _require_server()
    from holdfast.dashboard.app import Serving

    reach = reached(on, context, namespace)
    serving = Serving(host, port, asks_token=token)
    if reach is not None:
        if folder is not None:
            raise _usage("a folder and a cluster", "the page shows jobs of one place")
        _of_cluster(reach, serving, cluster_tokens)
    elif cluster_tokens:
        raise _usage("--cluster-tokens without a cluster", "only a cluster can verify its tokens")
    else:
        _of_folder(folder, serving)


def _of_folder(folder: Path | None, serving: "Serving") -> None:
    from holdfast.dashboard.app import serve
    from holdfast.dashboard.fleet import FolderFleet
    from holdfast.drivers.records import jobs_home

    if folder is not None and not folder.is_dir():
        raise Error(
            "usage",
            f"{folder} is not a folder",
            why="the page shows the jobs whose folders lie in it",
            help=f"ls -ld {folder}",
        )
    home = jobs_home() if folder is None else folder.absolute()
    title = "jobs of this machine" if folder is None else f"jobs in {home}"
    serve(FolderFleet(home, title), serving, talk)


def _of_cluster(reach: Reach, serving: "Serving", cluster_tokens: bool) -> None:
    from holdfast.cli.cluster import client
    from holdfast.dashboard.cluster import serve

    serve(client(), (reach.context, reach.namespace), serving, talk, cluster_tokens=cluster_tokens)


def _usage(what: str, why: str) -> Error:
    return Error("usage", what, why=why, help="holdfast dashboard --help")


def _require_server() -> None:
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        raise Error(
            "dashboard-missing",
            "no web server is installed",
            why=f"the package {error.name} is not installed",
            help="pip install 'holdfast[dashboard]'",
        ) from None

"""`holdfast agent`: what a pod of a managed job runs. Nobody types it."""

import os
import signal
from typing import Annotated

import typer

REPLACE = 143  # as the engine knows it: 128 and SIGTERM


def agent(wait: Annotated[bool, typer.Option("--wait")] = False) -> None:
    """Run the agent of this pod until the job ends; with --wait only wait for its end."""
    # The first process of a pod is not ended by signals that it does not handle.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(REPLACE))
    if not wait:
        from holdfast.agent import ray_beside

        ray_beside.accompany(os.environ)
    from holdfast.agent.pod import run

    raise typer.Exit(run(os.environ, wait=wait))

"""Start the agent of one node: `python -m holdfast.agent --job-dir DIR --node UID --name node-0`.

Standard output and error are the agent's log, given by whoever starts it.
"""

import argparse
import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import msgspec

from holdfast import stray_signals
from holdfast.agent import probes, processes
from holdfast.agent.agent import Agent
from holdfast.agent.node import NodeIdentity
from holdfast.agent.notes import note
from holdfast.messages import PROTOCOL
from holdfast.scrape import port_of
from holdfast.spec import Job


def main() -> int:
    """Run until the node ends; the exit status."""
    stray_signals.outlive(note, signal.SIGHUP)
    options = _options()
    me = NodeIdentity(options.node, options.name, options.address, options.job_dir.resolve())
    job = Job.model_validate_json((me.folder / "job.json").read_bytes())
    if options.dies_with:
        processes.die_with_parent(options.dies_with, signal.SIGKILL)
    processes.adopt_orphans()
    _write_card(me)
    return asyncio.run(_live(me, job))


async def _live(me: NodeIdentity, job: Job) -> int:
    agent = Agent(me, job, os.environ)
    if job.monitoring.port is None:
        return await agent.live()
    server = await probes.serve(me.address, 0, agent.health)
    _write_card(me, metrics=port_of(server))
    return await agent.live()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m holdfast.agent", description=__doc__)
    parser.add_argument("--job-dir", type=Path, required=True, help="folder of the job")
    parser.add_argument("--node", required=True, help="unique id of this life of the node")
    parser.add_argument("--name", required=True, help="name of the node, such as node-0")
    parser.add_argument("--address", default="127.0.0.1", help="how other nodes reach this one")
    parser.add_argument("--dies-with", type=int, default=0, help="process id of the parent")
    return parser.parse_args()


def _write_card(me: NodeIdentity, metrics: int = 0) -> None:
    """Tell the local driver who runs here, even if no controller is there now; `metrics` is the
    port on which it is scraped."""
    path = me.folder / "nodes" / me.name / "agent.json"
    card = {"node": me.node, "name": me.name, "pid": os.getpid(), "started": time.time()}
    card["protocol"] = PROTOCOL
    if metrics:
        card["metrics"] = metrics
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".new")
        fresh.write_bytes(msgspec.json.encode(card))
        fresh.replace(path)
    except OSError as error:
        note(f"agent: {path}: {error.strerror}")


if __name__ == "__main__":
    sys.exit(main())

"""Real jobs for the tests: `holdfast run` as a user starts it, watched from outside."""

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import yaml

from holdfast.drivers import client, records
from holdfast.status import Goodput, Incident, JobStatus
from tests.patience import ENOUGH_S, MAY_BE_SILENT, Patience, until
from tests.tidy.source import ROOT
from tests.warm import Warm

TOGETHER: dict[str, Any] = {"nodes": 1, "workers_per_node": 2}  # two ranks, for `small`
SCRIPTS = Path(__file__).parent / "scripts"
ENDLESS = ["--steps", "1000000"]  # until `finish`


class RunningJob:
    """One `holdfast run` in a process of its own, and what can be seen of it."""

    def __init__(self, home: Path, **spec: Any) -> None:
        self.name: str = spec.setdefault("name", "job")
        spec["recovery"] = {**MAY_BE_SILENT, **spec.get("recovery", {})}
        self.out = home.parent / "out"
        self.out.mkdir(exist_ok=True)
        self.folder = home / "jobs" / self.name
        self.file = home.parent / f"{self.name}.yaml"
        self.file.write_text(yaml.safe_dump(spec))
        self.terminal = home.parent / "terminal.txt"
        self.process: subprocess.Popen[Any] | None = None
        self.by: Callable[..., subprocess.Popen[Any]] = Warm  # the command line

    def start(self, *arguments: str) -> "RunningJob":
        """Run in the foreground of a process of its own."""
        return self._holdfast("run", str(self.file), *arguments)

    def resume(self) -> "RunningJob":
        """`holdfast resume`, likewise."""
        return self._holdfast("resume", self.name)

    def _holdfast(self, *arguments: str) -> "RunningJob":
        with self.terminal.open("ab") as terminal:
            self.process = self.by(
                arguments,
                stdout=terminal,
                stderr=terminal,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        return self

    # ── what can be seen ──

    def status(self) -> JobStatus:
        """The job's status; fails if there is no such job yet."""
        return client.status(self.folder)

    def incidents(self) -> list[Incident]:
        """Every incident so far."""
        return records.incidents(self.folder, time.time())

    def goodput(self) -> Goodput:
        """The ledger."""
        return records.goodput(self.folder, time.time())

    def metrics(self) -> list[dict[str, Any]]:
        """Every step that rank 0 logged, over all attempts."""
        path = self.folder / "metrics.jsonl"
        if not path.exists():
            return []
        lines = path.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def losses(self) -> dict[int, float]:
        """Loss by step; a step that was redone must have had the same loss."""
        losses: dict[int, float] = {}
        for line in self.metrics():
            assert losses.setdefault(line["step"], line["loss"]) == line["loss"], line
        return losses

    def said(self) -> str:
        """What the terminal shows."""
        return self.terminal.read_text()

    def worker(self, rank: int) -> int:
        """The pid of the worker with this rank, as soon as it is reported."""
        found: list[int] = []

        def known(status: JobStatus) -> bool:
            for node in status.nodes:
                first = (node.rank or 0) * len(node.pids)
                if node.rank is not None and first <= rank < first + len(node.pids):
                    found.append(node.pids[rank - first])
            return any(found)  # 0: not reported yet; a signal to it would be for all of us

        self.wait_until(known, f"the pid of rank {rank}")
        return next(filter(None, found))

    def agent(self, name: str) -> int:
        """The pid of a node's agent."""
        found: int = json.loads((self.folder / "nodes" / name / "agent.json").read_text())["pid"]
        return found

    def member(self, rank: int) -> str:
        """The name of the node with this node rank."""
        return next(n.name for n in self.status().nodes if n.rank == rank)

    # ── waiting ──

    def wait_until(self, condition: Callable[[JobStatus], bool], what: str) -> JobStatus:
        """Wait for something to be true of the status; fails when the job ends before."""
        patience = Patience()
        while not patience.is_over:
            if (self.folder / "job.json").exists():
                status = self.status()
                if condition(status):
                    return status
            assert self.process is not None
            ended = self.process.poll()
            assert ended is None, f"the job ended ({ended}) before: {what}\n{self.said()}"
            time.sleep(0.1)  # a look reads the journal
        raise AssertionError(f"not within {ENOUGH_S:g} s: {what}\n{self.said()}")

    def wait_step(self, step: int, attempt: int = 0) -> JobStatus:
        """Wait until an attempt (by default any) has done a step and all is well."""
        return self.wait_until(
            lambda s: s.attempt >= attempt and s.phase == "running" and (s.step or 0) >= step,
            f"step {step} in attempt {attempt}",
        )

    def wait_end(self, status: int = 0) -> None:
        """Wait for the end, which must come with this exit status, and for the books to balance."""
        assert self.process is not None
        look = self.process.poll
        assert until(lambda: look() is not None), f"it does not end\n{self.said()}"
        ended = look()
        assert ended == status, f"exit status {ended}, not {status}\n{self.said()}"
        self.books_balance()

    def finish(self) -> None:
        """Have a script that looks for it end with the step under way, and wait for that: as many
        steps as the test needed, on a machine of any speed."""
        enough = self.out / "enough"
        enough.touch()
        self.wait_end()
        enough.unlink()

    def books_balance(self) -> None:
        """The ledger adds up, and every incident's bill to its cost."""
        goodput = self.goodput()
        assert round(sum(goodput.buckets.values()) * 1000) == round(goodput.wall_s * 1000)
        assert all(seconds >= 0 for seconds in goodput.buckets.values())
        for incident in self.incidents():
            assert round(sum(incident.bill.values()), 3) == incident.lost_s

    # ── harm ──

    def kill_controller(self) -> None:
        """SIGKILL of the process that runs the controller."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def kill_node(self, *names: str) -> None:
        """SIGKILL of nodes: agents and everything below them, at once, as when the power goes."""
        agents = [psutil.Process(self.agent(name)) for name in names]
        for process in [p for agent in agents for p in (agent, *agent.children(recursive=True))]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)


def small(
    home: Path, *, nodes: int = 2, spares: int = 0, args: list[str], **spec: Any
) -> RunningJob:
    """A job that runs `scripts/small.py`, with a snapshot after each step. A node imports torch by
    itself, so ranks share one (`**TOGETHER`) where nothing that is promised is between nodes."""
    out = home.parent / "out"
    return RunningJob(
        home,
        script=str(SCRIPTS / "small.py"),
        args=["--out", str(out), *args],
        nodes={"count": nodes, "spares": spares},
        **{"snapshots": {"every_steps": 1}, **spec},
    )


def program(home: Path, text: str, **spec: Any) -> RunningJob:
    """A job that runs a Python text as its script: without torch, which takes seconds to import,
    and without warm workers unless asked for."""
    path = home.parent / "script.py"
    path.write_text(text)
    plain = {"warm": {"mode": "off"}, "framework": "command"}
    return RunningJob(home, script=str(path), **{**plain, **spec})


def guide(name: str) -> tuple[dict[str, Any], list[list[str]]]:
    """The first job and the first commands of a guide, without the name of the program."""
    text = (ROOT / "docs" / "guides" / f"{name}.md").read_text()
    job, commands = (re.findall(rf"```{kind}\n(.*?)```", text, re.S)[0] for kind in ("yaml", "sh"))
    return yaml.safe_load(job), [line.split()[1:] for line in commands.splitlines()]

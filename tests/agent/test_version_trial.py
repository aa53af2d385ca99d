"""A version is tried beside the one that trains; only what its script does speaks against it."""

import asyncio
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from holdfast.agent import child, version_trial
from holdfast.agent.fork_protocol import ChildKind, Program
from holdfast.agent.job_versions import JobVersions
from holdfast.agent.processes import ProcessExit
from holdfast.agent.ready_versions import ReadyVersions
from holdfast.agent.version_trial import VersionTrial
from holdfast.events import WorkerError
from holdfast.messages import PrepareVersion, VersionPrepared
from holdfast.spec import Job
from holdfast.versions import Version

OLD, NEW, OTHER = (Program(script=f"{name}.py") for name in ("old", "new", "other"))


class Node:
    """One worker of a node: warm ones, and what is done to them."""

    def __init__(self) -> None:
        self.killed: list[str] = []
        self.made = 0
        self.workers = SimpleNamespace(
            warm={0: self.worker("warm")}, trial={}, warm_kind=ChildKind.RUN,
            try_out=self._try_out, take_trial=self._take_trial,
        )  # fmt: skip
        self.processes = SimpleNamespace(
            program=OLD, ready=True, forkserver="it", workers=self.workers,
            signal=lambda worker, _: self.killed.append(worker.name),
        )  # fmt: skip
        processes: Any = self.processes  # played
        self.ready = ReadyVersions(processes)

    def worker(self, name: str) -> Any:
        output = SimpleNamespace(tail=b"", catch_up=lambda: None)
        return SimpleNamespace(
            name=name, hang_up=lambda: None, forkserver="", death=None, error_file=None,
            page=SimpleNamespace(error=lambda: None), output=output,
            control=SimpleNamespace(waits_at=lambda: ""),
        )  # fmt: skip

    def _try_out(self, _forkserver: object, program: Program) -> None:
        if not self.workers.trial:
            self.made += 1
            self.workers.trial[0] = self.worker(str(program.script))

    def _take_trial(self) -> Any:
        old, self.workers.warm, self.workers.trial = self.workers.warm, self.workers.trial, {}
        return old


def test_an_attempt_of_the_old_version_does_not_end_what_is_tried_beside_it() -> None:
    node = Node()
    node.ready.try_out(NEW)
    node.ready.begin(OLD)
    node.ready.use(OLD, NEW)
    assert node.ready.tries(NEW) and not node.killed
    node.ready.begin(NEW)
    assert node.killed == ["warm"] and node.workers.warm[0].name == "new.py"
    assert not node.ready.tries(NEW)


def test_what_is_not_wanted_any_more_is_dropped() -> None:
    node = Node()
    node.ready.try_out(NEW)
    node.ready.use(OLD, None)
    assert node.killed == ["new.py"] and not node.ready.tries(NEW)
    node.ready.try_out(NEW)
    node.ready.begin(OTHER)
    assert node.ready.tries(NEW), "another one is used, by a failure; this one is still prepared"


def trial(node: Node, tmp_path: Path, monkeypatch: Any) -> tuple[VersionTrial, list[Any]]:
    monkeypatch.setattr(version_trial, "LOOK_S", 0.001)
    answers: list[Any] = []
    job = Job.model_validate({"name": "j", "script": str(tmp_path / "s.py")})
    (tmp_path / "s.py").write_text("from holdfast.train import join\njoin()\n")
    parts: Any = SimpleNamespace(
        job=job, processes=node.processes, ready=node.ready,
        versions=JobVersions(job, tmp_path, instrumented=True),
        controller=SimpleNamespace(answer=answers.append),
    )  # fmt: skip
    return VersionTrial(parts), answers


def test_a_script_that_exits_is_refused_with_its_last_words_and_without_secrets(
    tmp_path: Path, monkeypatch: Any
) -> None:
    node = Node()
    found, answers = trial(node, tmp_path, monkeypatch)

    async def play() -> None:
        asking = asyncio.create_task(found.prepare(PrepareVersion(number=7, version=version)))
        while not node.workers.trial:
            await asyncio.sleep(0)
        worker = node.workers.trial[0]
        worker.output.tail = b"usage: s.py [-h]\ns.py: error: unrecognized: --lr hunter22\n"
        worker.page.error = lambda: WorkerError(type="SystemExit", message="2")
        await asking

    version = Version(number=2, sets={"lr": "x", "env.API_TOKEN": "hunter22"})
    asyncio.run(play())
    why = "exit status 2: usage: s.py [-h]; s.py: error: unrecognized: --lr ***"
    assert answers == [VersionPrepared(number=7, why=f"the script ended with {why}")]


def test_a_forkserver_that_dies_takes_the_tried_workers_along_and_they_are_made_anew(
    tmp_path: Path, monkeypatch: Any
) -> None:
    node = Node()
    found, answers = trial(node, tmp_path, monkeypatch)

    async def play() -> None:
        version = Version(number=2, sets={"lr": "x"})
        asking = asyncio.create_task(found.prepare(PrepareVersion(number=7, version=version)))
        while not node.workers.trial:
            await asyncio.sleep(0)
        worker = node.workers.trial.pop(0)
        worker.forkserver = "killed by SIGKILL"
        worker.death = ProcessExit(1, None, 9, 0.0)
        while not node.workers.trial:
            await asyncio.sleep(0)
        node.workers.trial[0].control.waits_at = lambda: "join"
        await asking

    asyncio.run(play())
    assert answers == [VersionPrepared(number=7)] and node.made == 2


def test_modules_that_were_loaded_ahead_from_the_old_code_are_imported_anew(
    tmp_path: Path, monkeypatch: Any
) -> None:
    for name, place in (("own", "own.py"), ("lib", ".venv/site-packages/lib.py")):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(__file__=str(tmp_path / place)))
    child._forget_code_in(str(tmp_path))
    assert "own" not in sys.modules and "lib" in sys.modules


def test_source_that_no_parser_survives_is_refused_and_ends_no_agent(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text("x = " + "(" * 150 + ")" * 150 + "\n" + "-" * 90_000 + "1\n")
    job = Job.model_validate({"name": "j", "script": str(tmp_path / "s.py")})
    assert JobVersions(job, tmp_path, instrumented=True).flaw(Version(number=2))
    (tmp_path / "s.py").write_bytes(b"x = 1\0")
    said = JobVersions(job, tmp_path, instrumented=True).flaw(Version(number=3))
    assert said == f"SyntaxError: source code string cannot contain null bytes ({job.script})"

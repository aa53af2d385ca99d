"""The workers of one node: those of the attempt, and the warm ones that wait for the next.

A worker is born cold (with its rank) or warm (with a control socket on which the rank arrives).
Each has its own progress page; the snapshot arena and the storage page belong to the local rank and
outlive them all.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec

from holdfast.agent import fork_protocol, recorders
from holdfast.agent.dump_memory import DumpMemory
from holdfast.agent.forkserver_handle import ForkserverHandle
from holdfast.agent.output import LogFile, Output
from holdfast.agent.parking import Parking
from holdfast.agent.pod_log import PodLog, RankedLines
from holdfast.agent.printed_steps import PrintedSteps
from holdfast.agent.processes import ProcessExit
from holdfast.agent.progress_file import ProgressFile
from holdfast.agent.rank_socket import RankSocket
from holdfast.agent.recorders import Recorder
from holdfast.checkpoint.arena import Arena
from holdfast.checkpoint.storage_page import StoragePage
from holdfast.events import Milestone
from holdfast.messages import Assignment
from holdfast.page import Page
from holdfast.rank import ERROR_FILE
from holdfast.spec.progress import ProgressPatterns


@dataclass
class WorkerSockets:
    """Our ends of those on which a worker answers, besides the one on which its rank arrives."""

    recorder: Recorder | None = None  # tells which collectives it has entered
    dump: DumpMemory | None = None  # where it writes its stacks if it cannot tell them
    parking: Parking | None = None  # None: it is replaced when its attempt is broken

    def close(self) -> None:
        """It has died."""
        for end in (self.recorder, self.dump, self.parking):
            if end is not None:
                end.close()


@dataclass
class Worker:
    """One worker process, from the order to fork it until after its death."""

    id: int
    local_rank: int
    page: Page
    output: Output
    control: RankSocket | None = None  # on which it gets its rank; None: it was born with it
    pid: int = 0  # 0 until the forkserver has answered
    assignment: Assignment | None = None
    assigned_at: float = 0.0
    fallen: ForkserverHandle | None = None  # its forkserver, if that has ended
    log: str = ""  # relative to the job's folder
    death: ProcessExit | None = None
    milestones: bytes = b""  # as of the last look
    own_status: int | None = None  # with which it was on its way out when it was told to stop
    ends: ProcessExit | None = None  # what the controller knows of its end, while it is not over
    sockets: WorkerSockets = field(default_factory=WorkerSockets)

    def take_rank(self, assignment: Assignment, log: str) -> None:
        """It is now a worker of this attempt."""
        if self.is_parked:
            self.page.begin_again()
            self.milestones, self.own_status, self.ends = b"", None, None
        self.assignment = assignment
        self.assigned_at = time.monotonic()
        self.log = log
        self.page.reach(Milestone.STARTED)

    @property
    def is_parked(self) -> bool:
        """Whether it waits for the next attempt, and does nothing of the last any more."""
        return self.sockets.parking is not None and self.sockets.parking.parked

    @property
    def is_to_park(self) -> bool:
        """Whether it was told to, and has no other rank since."""
        return self.sockets.parking is not None and self.sockets.parking.ordered

    def dismiss(self) -> None:
        """It ends, if it is parked: it is not needed any more."""
        if self.is_parked and self.sockets.parking is not None:
            self.sockets.parking.close()

    def acts_in(self, attempt: int) -> bool:
        """Whether it lives, and does something of this attempt."""
        mine = self.assignment is not None and self.assignment.attempt == attempt
        return mine and self.death is None and not self.is_parked

    @property
    def forkserver(self) -> str:
        """How that had ended, if it had; empty while that is not known."""
        return "" if self.fallen is None else self.fallen.ending

    @property
    def raised_at(self) -> float:
        """When the script ended with an exception, as a worker with a rank; 0.0: it has not."""
        at = self.page.raised_at
        return at if at >= self.assigned_at else 0.0

    @property
    def error_file(self) -> Path | None:
        """Where torch may have left its exception."""
        return Path(self.assignment.env[ERROR_FILE]) if self.assignment is not None else None

    def hang_up(self) -> None:
        """A warm worker that still waits for its rank exits."""
        if self.control is not None:
            self.control.hang_up()


@dataclass
class Workers:
    """Every worker that lives, by id, and how to make more.

    `warm[local_rank]` has no rank yet and is alive as far as we know; `trial` likewise, of another
    version of the job than the one that is started next.
    """

    folder: Path
    name: str  # of the node
    log_bytes: int
    warm_kind: fork_protocol.ChildKind | None  # None: no warm workers
    cold_kind: fork_protocol.ChildKind
    new_id: Callable[[], int]
    arenas: list[int]
    storage_pages: list[int]
    tell_output: bool = False  # that a worker prints is news: nothing else tells that it works
    progress: ProgressPatterns | None = None  # where it tells its progress
    pod_log: PodLog | None = None  # where output is shown besides the files
    attempts_kept: int | None = None  # of which there are logs; None: all
    table: dict[int, Worker] = field(default_factory=dict)
    warm: dict[int, Worker] = field(default_factory=dict)
    trial: dict[int, Worker] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Workers of an attempt."""
        return len(self.arenas)

    def start(
        self, forkserver: ForkserverHandle, assignment: Assignment, program: fork_protocol.Program
    ) -> Worker:
        """A worker with this rank: the parked one if there is one that had it and runs this
        program, else the warm one, else a new one."""
        parked = self._parked(assignment, program)
        worker = parked or self.warm.pop(assignment.local_rank, None)
        log = f"logs/attempt-{assignment.attempt}/rank-{assignment.rank}.log"
        assignment = self._with_error_file(assignment, log)
        if worker is None:
            worker = self._fork(
                forkserver, assignment.local_rank, self.cold_kind, assignment.env, program
            )
            worker.take_rank(assignment, log)
        else:
            worker.take_rank(assignment, log)
            if parked is None and worker.control is not None:
                worker.control.tell(assignment)
        file = LogFile(self.folder / log, self.log_bytes)
        echo = (RankedLines(self.pod_log, assignment.rank),) if self.pod_log is not None else ()
        worker.output.send_to(file, *echo, *self._steps_told_by(worker, program.workdir))
        if parked is not None and parked.sockets.parking is not None:
            parked.sockets.parking.assign(assignment)
        if self.tell_output:
            worker.output.on_first = partial(worker.page.reach, Milestone.OUTPUT)
        return worker

    def _parked(self, assignment: Assignment, program: fork_protocol.Program) -> Worker | None:
        """Who waits for this rank: it had it, of as many, or can take another one. Else it ends."""
        parked = (worker for worker in self.table.values() if worker.is_parked)
        waiting = next((one for one in parked if one.local_rank == assignment.local_rank), None)
        if waiting is None or waiting.assignment is None:
            return None
        had, parking = waiting.assignment, waiting.sockets.parking
        same = (had.rank, had.world_size) == (assignment.rank, assignment.world_size)
        takes = parking is not None and (same or parking.moves)
        if not takes or parking is None or parking.program != program:  # or it was updated since
            waiting.dismiss()
            return None
        waiting.output.begin_again()
        return waiting

    def dismiss_parked(self) -> None:
        """None of them is needed any more."""
        for worker in self.table.values():
            worker.dismiss()

    def _steps_told_by(
        self, worker: Worker, workdir: str
    ) -> tuple[PrintedSteps | ProgressFile, ...]:
        """What reads them, unless the script reports them by itself."""
        progress, assignment = self.progress, worker.assignment
        if progress is None or assignment is None or not self.tell_output:
            return ()
        if progress.file is None:
            return (PrintedSteps(progress, worker.page),)
        path = progress.file_of(assignment.rank, assignment.local_rank)
        return (ProgressFile(Path(workdir, path), worker.page),) if path is not None else ()

    def _with_error_file(self, assignment: Assignment, log: str) -> Assignment:
        """Where `@record` of torch.distributed.elastic leaves an exception."""
        path = (self.folder / log).with_suffix(".error.json").absolute()
        with contextlib.suppress(OSError):  # a full disk: it is told of where output is lost
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        env = {**assignment.env, ERROR_FILE: str(path)}
        return msgspec.structs.replace(assignment, env=env)

    def warm_up(self, forkserver: ForkserverHandle, program: fork_protocol.Program) -> None:
        """Fill the warm set."""
        self._fill(self.warm, forkserver, program)

    def try_out(self, forkserver: ForkserverHandle, program: fork_protocol.Program) -> None:
        """Fill the set of another version."""
        self._fill(self.trial, forkserver, program)

    def _fill(
        self,
        workers: dict[int, Worker],
        forkserver: ForkserverHandle,
        program: fork_protocol.Program,
    ) -> None:
        if self.warm_kind is None:
            return
        for rank in range(self.count):
            if rank not in workers:
                workers[rank] = self._fork(forkserver, rank, self.warm_kind, {}, program)

    def beside(
        self,
        forkserver: ForkserverHandle,
        local_rank: int,
        env: dict[str, str],
        program: fork_protocol.Program,
    ) -> Worker:
        """A worker with a rank that is none of an attempt, and gets memory of its own."""
        kept = {"arena": Arena.create(), "storage_page": StoragePage.create()}
        worker = self._fork(forkserver, local_rank, self.cold_kind, env, program, kept)
        for fd in kept.values():
            os.close(fd)
        return worker

    def take_trial(self) -> dict[int, Worker]:
        """What was tried is started next; the warm ones until now."""
        old, self.warm, self.trial = self.warm, self.trial, {}
        return old

    def _fork(
        self,
        forkserver: ForkserverHandle,
        local_rank: int,
        kind: fork_protocol.ChildKind,
        env: dict[str, str],
        program: fork_protocol.Program,
        own: dict[str, int] | None = None,  # memory that is not that of the local rank
    ) -> Worker:
        page_fd = Page.create()
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        arena, storage_page = self.arenas[local_rank], self.storage_pages[local_rank]
        kept = own or {"arena": arena, "storage_page": storage_page}
        fds = {"output": write_end, "page": page_fd}
        worker = Worker(self.new_id(), local_rank, Page(page_fd), Output(read_end))
        if not env:
            worker.control = RankSocket()
            fds["control"] = worker.control.theirs
        if kind is not fork_protocol.ChildKind.EXEC:
            worker.sockets.recorder, answers = recorders.socket_pair()
            fds["recorder"] = answers.detach()
            worker.sockets.dump, fds["dump"] = DumpMemory.pair()
        if kind is not fork_protocol.ChildKind.EXEC and own is None:
            worker.sockets.parking, theirs = Parking.pair()
            worker.sockets.parking.program = program
            fds["parking"] = theirs.detach()
        self.table[worker.id] = worker
        order = fork_protocol.Fork(
            id=worker.id, kind=kind, env=env, program=program, fds=(*fds, *kept)
        )
        forkserver.fork(order, [*fds.values(), *kept.values()])
        for fd in fds.values():
            os.close(fd)
        return worker

    def bury(self, worker: Worker, death: ProcessExit) -> None:
        """It has died: take the rest of its output. Its page stays readable."""
        worker.death = death
        worker.output.finish()
        self.table.pop(worker.id)
        if self.warm.get(worker.local_rank) is worker:
            del self.warm[worker.local_rank]
            worker.output.send_to(LogFile(self.warm_log(worker.local_rank), self.log_bytes))
        elif self.trial.get(worker.local_rank) is worker:
            del self.trial[worker.local_rank]
            worker.output.send_to(LogFile(self.warm_log(worker.local_rank), self.log_bytes))
        worker.output.close_sinks()
        worker.hang_up()
        worker.sockets.close()

    def drop_logs(self, attempt: int) -> None:
        """This attempt begins: remove the logs of old ones, where only so many are kept."""
        if self.attempts_kept is None:
            return
        until = attempt - self.attempts_kept
        for path in (self.folder / "logs").glob("attempt-*"):
            number = path.name.removeprefix("attempt-")
            if number.isdecimal() and int(number) <= until:
                shutil.rmtree(path, ignore_errors=True)

    def warm_log(self, local_rank: int) -> Path:
        """Where the output of a worker goes that died before it had a rank."""
        return self.folder / "nodes" / self.name / f"warm-{local_rank}.log"

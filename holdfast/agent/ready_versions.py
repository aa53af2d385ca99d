"""Which version of the job has warm workers on this node: the one that is started next, and for a
while another one beside it, which is tried out.
"""

import signal

import msgspec

from holdfast.agent.fork_protocol import Program
from holdfast.agent.node_processes import NodeProcesses
from holdfast.agent.notes import note
from holdfast.agent.workers import Worker


class ReadyVersions:
    """Of one node. `NodeProcesses.program` is the version that is started next."""

    def __init__(self, processes: NodeProcesses) -> None:
        self._processes, self._workers = processes, processes.workers
        self._tried: Program | None = None

    def try_out(self, program: Program) -> None:
        """Make workers of another version ready, beside the warm ones."""
        if program != self._tried:
            self._drop(self._workers.trial)
            self._tried = program
        if self._processes.ready and self._processes.forkserver is not None:
            self._workers.try_out(self._processes.forkserver, program)

    def tries(self, program: Program) -> bool:
        """Whether this is still the version that is tried out."""
        return self._tried == program

    def begin(self, program: Program) -> None:
        """An attempt of this version begins; one that is tried out beside it still is."""
        before = self._processes.program
        if program == before:
            return
        if program == msgspec.structs.replace(before, stamp=program.stamp):
            note("agent: the script, or a module beside it, has changed: workers read it again")
        tried = program == self._tried
        self._drop(self._workers.take_trial() if tried else self._workers.warm)
        self._processes.program = program
        if tried:
            self._tried = None

    def use(self, program: Program, beside: Program | None) -> None:
        """This version is started next; what is ready of others is dropped, but for one."""
        self.begin(program)
        if self._tried is not None and self._tried != beside:
            self._drop(self._workers.trial)
            self._tried = None

    def _drop(self, workers: dict[int, Worker]) -> None:
        """They may be busy above `join()`, and would not see for long that nobody needs them."""
        for worker in workers.values():
            worker.hang_up()
            self._processes.signal(worker, signal.SIGKILL)
        workers.clear()

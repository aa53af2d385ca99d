"""The versions of a job on this node: where their code lies, and whether it can be used at all.

A bundle is checked and unpacked once, below the folder of the job, under the name of its hash; a
version that was used stays there, so that it can come back.

The code that the job was started with lies where its user works, until an update finds it edited
(`drivers/started_code.py`). Workers that ran ahead have read it before an edit, others of the same
attempt would read it after: so a program whose files have changed is another program, and all of
its workers are made anew.
"""

import contextlib
from pathlib import Path

import msgspec

from holdfast import bundles
from holdfast.agent import script_source
from holdfast.agent.environment import program_of
from holdfast.agent.fork_protocol import Program
from holdfast.spec import Job
from holdfast.versions import Version


class JobVersions:
    """Those of one job, whose bundles lie in `folder`. `instrumented`: the script that it was
    started with calls `join()`."""

    def __init__(self, job: Job, folder: Path, *, instrumented: bool) -> None:
        self._job, self._folder = job, folder
        self.instrumented = instrumented
        self._stamp: tuple[tuple[str, int, int], ...] = ()

    def program(self, version: Version) -> Program:
        """What the workers of this version run. Files that are out of reach count as unchanged:
        who has read them before can go on."""
        code = self._code(version)
        program = program_of(self._job, version, code)
        ahead = self.instrumented or self._job.warm.mode == "script"
        if code is not None or program.command or not ahead:
            return program
        with contextlib.suppress(OSError):
            self._stamp = script_source.stamp(program)
        return msgspec.structs.replace(program, stamp=self._stamp)

    def _code(self, version: Version) -> Path | None:
        name = version.code or bundles.named_in(self._folder / bundles.FIRST)
        return self._folder / name if name else None

    def missing(self, version: Version) -> bool:
        """Whether its code has to be unpacked first."""
        code = self._code(version)
        return code is not None and not code.is_dir()

    def unpack(self, version: Version) -> None:
        """Check and unpack it. Raises `ValueError`, `OSError`."""
        if (code := self._code(version)) is not None:
            bundles.unpacked(self._folder, code.name)

    def flaw(self, version: Version) -> str:
        """Why it cannot be used, as far as that can be seen without running it; empty if it can."""
        try:
            self.unpack(version)
        except (OSError, ValueError) as error:
            return str(error)
        program = self.program(version)
        if program.command:
            return ""
        try:
            tree = script_source.parsed(program)
        except SyntaxError as error:
            line = f", line {error.lineno}" if error.lineno else ""
            where = error.filename or program.script or program.module
            return f"SyntaxError: {error.msg} ({where}{line})"
        except (OSError, ValueError, RecursionError, MemoryError) as error:
            return f"the script cannot be read: {error}"
        if script_source.joins(tree) == self.instrumented:
            return ""
        if self.instrumented:
            return "the script does not call holdfast.train.join() any more"
        return (
            "the script calls holdfast.train.join(), and the one the job was started with did not"
        )

"""What is told of a process that ended before it could say anything else."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.agent.child_stderr import ChildStderr


def last_words(source: str, folder: Path) -> str:
    async def run() -> str:
        stderr = ChildStderr()
        command = [sys.executable, "-c", source]
        with subprocess.Popen(command, stderr=stderr.theirs, cwd=folder) as process:
            stderr.read()
            await asyncio.to_thread(process.wait)
        return stderr.last_words()

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("import broken", "ValueError: 1 ({folder}/broken.py:2)"),
        ("import sys; sys.exit('no such thing')", "no such thing"),
        ("print(1)", ""),
    ],
)
def test_an_error_is_told_with_the_file_that_raised_it(
    source: str, told: str, tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text("\nraise ValueError(1)\n")
    assert last_words(source, tmp_path) == told.format(folder=tmp_path)

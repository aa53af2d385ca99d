"""Logs in the shared folder hold everything that was printed, once and in order."""

import asyncio
import os
from pathlib import Path

import pytest

from holdfast.agent.log_copies import LogCopies


def test_all_that_was_printed_is_copied_once_through_rotations(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "attempt-1" / "rank-0.log"
    copies = LogCopies(tmp_path / "logs", tmp_path / "shared" / "gpt-0")
    copies.copy()
    assert not (tmp_path / "shared").exists(), "nothing is made for nothing"
    log.parent.mkdir(parents=True)
    told = ""
    for turn in range(6):
        with log.open("a") as file:
            file.write(f"a {turn}\n")
        copies.copy()
        with log.open("a") as file:
            file.write(f"b {turn}\n")
        os.replace(log, log.with_name("rank-0.log.1"))
        log.write_text(f"c {turn}\n")
        told += f"a {turn}\nb {turn}\nc {turn}\n"
        copies.copy()
        copies.copy()
    assert (tmp_path / "shared" / "gpt-0" / "attempt-1" / "rank-0.log").read_text() == told


def test_a_folder_that_refuses_is_told_and_holds_up_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "attempt-1").mkdir()
    (tmp_path / "attempt-1" / "rank-0.log").write_text("x")
    (tmp_path / "shared").write_text("a file, no folder")
    asyncio.run(LogCopies(tmp_path, tmp_path / "shared").finish())
    assert "the logs cannot be copied" in capfd.readouterr().err

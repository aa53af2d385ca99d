"""Where the words of a controller go."""

import os
import pty
from pathlib import Path

from holdfast.drivers.talk import talk_to_file


def test_once_the_terminal_is_gone_only_what_went_there_goes_to_the_log(tmp_path: Path) -> None:
    asked = os.open(tmp_path / "train.log", os.O_CREAT | os.O_WRONLY)
    master, terminal = pty.openpty()
    reader, pipe = os.pipe()
    os.close(master)  # the terminal hangs up
    talk_to_file(tmp_path / "controller.log", (asked, terminal, pipe))
    for fd, text in ((asked, b"a"), (terminal, b"t"), (pipe, b"p")):
        os.write(fd, text)
        os.close(fd)
    os.close(reader)
    assert (tmp_path / "train.log").read_bytes() == b"a"
    assert (tmp_path / "controller.log").read_bytes() == b"tp"

"""Who may have a command run by the worker of a node, and who may not."""

import json
import socket
import sys
import threading

import pytest

from holdfast import meeting
from holdfast.agent.frameworks import mpi_launch
from tests.patience import PATIENCE_S

KEY = b"secret"


def test_one_that_connects_and_says_nothing_keeps_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "ANSWER_S", 0.1)
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        obeying = threading.Thread(target=mpi_launch.obey, args=(accepted, KEY, ""), daemon=True)
        obeying.start()
        obeying.join(PATIENCE_S)
        assert not obeying.is_alive()


def test_a_command_is_run_and_its_output_and_status_come_back(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def serve() -> None:
        for greeting in (b"\x00\x00\x00\x05hello", b""):
            sock, _ = listener.accept()
            if greeting:
                with sock:
                    sock.sendall(greeting)
                    sock.recv(1 << 16)
            else:
                mpi_launch.obey(sock, KEY, "")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        monkeypatch.setenv(mpi_launch.HOSTS, json.dumps({"node": f"{host}:{port}"}))
        monkeypatch.setenv(meeting.KEY, KEY.decode())
        monkeypatch.setattr(sys, "argv", ["mpi_launch", "-x", "node", "echo it runs;", "exit 7"])
        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        assert mpi_launch.main() == 255  # somebody else is there
        assert "node: " in capfd.readouterr().err
        assert mpi_launch.main() == 7
        serving.join(PATIENCE_S)
    assert capfd.readouterr().out == "it runs\n"

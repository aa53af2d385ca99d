"""What `mpirun` calls where it would call ssh: `mpi_launch HOST COMMAND...`.

It connects to the first worker of that node and proves that it knows the job's key; the worker runs
the command, which is MPI's own daemon. Output and exit status come back.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from functools import partial
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge

from holdfast import meeting
from holdfast.agent import processes

HOSTS = "HOLDFAST_MPI_HOSTS"  # address by name: JSON
PLACES = "HOLDFAST_MPI_PLACES"  # where the workers of the node wait for their ranks
_CHUNK_BYTES = 65536
_COMMAND_BYTES = 1 << 20


def main() -> int:
    """The exit status of the command there; 255 where there is nobody, as of ssh."""
    words = [word for word in sys.argv[1:] if word != "-x"]  # Hydra asks ssh for no X11
    host, command = words[0], " ".join(words[1:])
    address, _, port = json.loads(os.environ[HOSTS])[host].rpartition(":")
    try:
        sock = socket.create_connection((address.strip("[]"), int(port)))
        connection = Connection(sock.detach())
        key = os.environ[meeting.KEY].encode()
        answer_challenge(connection, key)
        deliver_challenge(connection, key)
        connection.send_bytes(command.encode())
        while True:
            told = connection.recv_bytes()
            if told[:1] == b"x":
                return int(told[1:]) % 256
            os.write(1, told[1:])
    except meeting.STRANGE as error:
        print(f"holdfast: {host}: {type(error).__name__}: {error}", file=sys.stderr)
        return 255


def obey(sock: socket.socket, key: bytes, places: str) -> None:
    """In the worker of that node: run what is asked for by somebody who knows the key."""
    connection = meeting.linked(sock, meeting.ANSWER_S)  # a stranger may say nothing
    with contextlib.suppress(*meeting.STRANGE), connection:
        deliver_challenge(connection, key)
        answer_challenge(connection, key)
        command = connection.recv_bytes(_COMMAND_BYTES).decode()
        # Not before it is asked for: this thread lives as long as the daemon, whose end it decides.
        daemon = subprocess.Popen(
            ["/bin/sh", "-c", command],
            env={**os.environ, PLACES: places},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            preexec_fn=partial(processes.die_with_parent, os.getpid(), signal.SIGKILL),
        )
        assert daemon.stdout is not None
        while data := os.read(daemon.stdout.fileno(), _CHUNK_BYTES):
            connection.send_bytes(b"o" + data)
        connection.send_bytes(b"x%d" % daemon.wait())


if __name__ == "__main__":
    sys.exit(main())

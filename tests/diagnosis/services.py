"""Record what libraries raise when a service, the network or a file system fails.

Run `python -m tests.diagnosis.services FOLDER`: each scenario is a script of its own that meets the
real fault (a refused connection, a name that does not resolve, a server that says 503 or hangs up)
with the real library, and what it prints on stderr is kept. `ours` are errors of the script that
look similar. The tests read the kept files, as with record.py.
"""

import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.diagnosis.record import anonymous

ERROR = "<?xml version='1.0'?><Error><Code>{0}</Code><Message>said by a test</Message></Error>"
CODES = {503: "SlowDown", 500: "InternalError", 404: "NoSuchKey", 403: "AccessDenied"}
REFUSED = "http://127.0.0.1:9/x"
NOWHERE = "http://no-such-host.invalid/x"
S3 = (
    "import boto3, botocore.config\n"
    "c = boto3.client('s3', endpoint_url='{url}', region_name='x', aws_access_key_id='a',\n"
    "  aws_secret_access_key='b', config=botocore.config.Config(retries={{'max_attempts': 0}},\n"
    "  read_timeout=0.5, s3={{'addressing_style': 'path'}}))\n"
    "c.get_object(Bucket='data', Key='shard-1')['Body'].read()\n"
)
S3FS = (
    "import s3fs\n"
    "fs = s3fs.S3FileSystem(key='a', secret='b', endpoint_url='{url}',\n"
    "  config_kwargs={{'retries': {{'max_attempts': 0}}}})\n"
    "fs.retries = 1\n"
    "fs.cat('data/shard-1')\n"
)
AIOHTTP = (
    "import aiohttp, asyncio\n"
    "async def main():\n"
    "    t = aiohttp.ClientTimeout(total=0.5)\n"
    "    async with aiohttp.ClientSession(timeout=t, raise_for_status=True) as s:\n"
    "        async with s.get('{url}') as r:\n"
    "            await r.read()\n"
    "asyncio.run(main())\n"
)
REQUESTS = "import requests\nrequests.get('{url}', timeout=0.5).raise_for_status()\n"
URLLIB = "import urllib.request\nurllib.request.urlopen('{url}', timeout=0.5).read()\n"
URLLIB3 = "import urllib3\nurllib3.PoolManager(retries=1, timeout=0.5).request('GET', '{url}')\n"
FSSPEC = "import fsspec\nfsspec.open('{url}').open().read()\n"
LOADER = (
    "import os, signal, time, requests\n"
    "from torch.utils.data import DataLoader, Dataset\n"
    "class Remote(Dataset):\n"
    "    def __len__(self):\n"
    "        return 8\n"
    "    def __getitem__(self, index):\n"
    "        {body}\n"
    "if __name__ == '__main__':\n"
    "    for batch in DataLoader(Remote(), num_workers=1, timeout={timeout}):\n"
    "        pass\n"
)
RAISES = "import errno, os\nraise OSError(errno.{0}, os.strerror(errno.{0}), '/data/shard-1')\n"

# name: (script, path on the server)
ENVIRONMENT: dict[str, str] = {
    "requests_refused": REQUESTS.format(url=REFUSED),
    "requests_no_such_host": REQUESTS.format(url=NOWHERE),
    "requests_503": REQUESTS.format(url="{server}/503"),
    "requests_429": REQUESTS.format(url="{server}/429"),
    "requests_timeout": REQUESTS.format(url="{server}/slow"),
    "requests_cut": REQUESTS.format(url="{server}/cut"),
    "requests_hang_up": REQUESTS.format(url="{server}/hang-up"),
    "urllib_refused": URLLIB.format(url=REFUSED),
    "urllib_503": URLLIB.format(url="{server}/503"),
    "urllib_timeout": URLLIB.format(url="{server}/slow"),
    "urllib_cut": URLLIB.format(url="{server}/cut"),
    "urllib3_refused": URLLIB3.format(url=REFUSED),
    "aiohttp_refused": AIOHTTP.format(url=REFUSED),
    "aiohttp_no_such_host": AIOHTTP.format(url=NOWHERE),
    "aiohttp_503": AIOHTTP.format(url="{server}/503"),
    "aiohttp_timeout": AIOHTTP.format(url="{server}/slow"),
    "aiohttp_cut": AIOHTTP.format(url="{server}/cut"),
    "aiohttp_hang_up": AIOHTTP.format(url="{server}/hang-up"),
    "fsspec_refused": FSSPEC.format(url=REFUSED),
    "boto3_refused": S3.format(url="http://127.0.0.1:9"),
    "boto3_no_such_host": S3.format(url="http://no-such-host.invalid"),
    "boto3_slow_down": S3.format(url="{server}/503"),
    "boto3_internal_error": S3.format(url="{server}/500"),
    "boto3_timeout": S3.format(url="{server}/slow"),
    "boto3_cut": S3.format(url="{server}/cut"),
    "boto3_hang_up": S3.format(url="{server}/hang-up"),
    "s3fs_slow_down": S3FS.format(url="{server}/503"),
    "s3fs_refused": S3FS.format(url="http://127.0.0.1:9"),
    "socket_no_such_host": "import socket\nsocket.create_connection(('no-such-host.invalid', 1))\n",
    "socket_timeout": (
        "import socket\ns = socket.create_connection(('127.0.0.1', {port}), 0.5)\ns.recv(1)\n"
    ),
    "pipe_broken": "import os\nr, w = os.pipe()\nos.close(r)\nos.write(w, b'x')\n",
    "read_eio": "open('/proc/self/mem', 'rb', 0).read(1)\n",
    "stale": RAISES.format("ESTALE"),
    "unmounted": RAISES.format("ENOTCONN"),
    "loader_worker_refused": LOADER.format(body=f"return requests.get({REFUSED!r})", timeout=0),
    "loader_timed_out": LOADER.format(body="time.sleep(60)", timeout=1),
    "wrapped_on_purpose": (
        "class ShardError(ValueError):\n    pass\n"
        "import socket\n"
        "try:\n    socket.create_connection(('127.0.0.1', 9))\n"
        "except OSError as error:\n    raise ShardError('shard-1 cannot be read') from error\n"
    ),
    "exit_after_refused": (
        "import socket, sys\n"
        "try:\n    socket.create_connection(('127.0.0.1', 9))\n"
        "except OSError:\n    raise RuntimeError('no data')\n"
    ),
}
OURS: dict[str, str] = {
    "requests_404": REQUESTS.format(url="{server}/404"),
    "requests_403": REQUESTS.format(url="{server}/403"),
    "requests_no_scheme": REQUESTS.format(url="data/shard-1"),
    "urllib_404": URLLIB.format(url="{server}/404"),
    "urllib_no_scheme": URLLIB.format(url="data/shard-1"),
    "urllib_unknown_scheme": URLLIB.format(url="s3://data/shard-1"),
    "aiohttp_404": AIOHTTP.format(url="{server}/404"),
    "aiohttp_no_scheme": AIOHTTP.format(url="data/shard-1"),
    "boto3_no_such_key": S3.format(url="{server}/404"),
    "boto3_access_denied": S3.format(url="{server}/403"),
    "s3fs_no_such_key": S3FS.format(url="{server}/404"),
    "timeout_argument": "raise ValueError('timeout must be > 0')\n",
    "no_such_file": "open('/data/shard-1')\n",
    "bug_of_a_handler": (
        "import socket\n"
        "try:\n    socket.create_connection(('127.0.0.1', 9))\n"
        "except OSError:\n    print(dict()['mirror'])\n"
    ),
    "loader_worker_bug": LOADER.format(body="return dict()[index]", timeout=0),
}
KILLED: dict[str, str] = {
    "loader_worker_killed": LOADER.format(body="os.kill(os.getpid(), signal.SIGKILL)", timeout=0),
    "loader_worker_bus_error": LOADER.format(body="os.kill(os.getpid(), signal.SIGBUS)", timeout=0),
}


class Handler(BaseHTTPRequestHandler):
    """Answers as the first part of the path says."""

    def do_GET(self) -> None:
        """One request."""
        what = self.path.split("/")[1]
        if what == "slow":
            time.sleep(3)
        if what == "cut":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"x" * 10)
        elif what.isdecimal():
            body = ERROR.format(CODES.get(int(what), "Other")).encode()
            self.send_response(int(what))
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body if self.command == "GET" else b"")
        self.close_connection = True

    do_HEAD = do_GET  # noqa: N815 - the name that http.server calls

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing."""


def record(script: str, server: str) -> str:
    """stderr of a script that meets the fault."""
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "train.py"
        port = server.rpartition(":")[2]
        file.write_text(script.replace("{server}", server).replace("{port}", port))
        ran = subprocess.run(
            [sys.executable, str(file)], capture_output=True, text=True, timeout=120, check=False
        )
        assert ran.returncode != 0, script
        return anonymous(ran.stderr, name).replace(server, "http://data.example:80")


def main(target: Path) -> None:
    """Record every scenario into one file each."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    for folder, scenarios in (("environment", ENVIRONMENT), ("ours", OURS), ("killed", KILLED)):
        (target / folder).mkdir(parents=True, exist_ok=True)
        for name, script in scenarios.items():
            file = target / folder / f"{name}.txt"
            if not file.exists():
                file.write_text(record(script, address))
    server.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

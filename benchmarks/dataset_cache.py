"""What the starts of jobs ask of the server behind a data set that is cached on the machine.

    .venv/bin/python benchmarks/dataset_cache.py [--quick] [--json]

A server that speaks S3 (moto) holds the data set; every start is a `holdfast run` of two nodes, of
another job than the one before. `object_reads` and `read_bytes` are what the server was asked for
of its objects, `other_requests` all else (the listings); `start_s` is the time from `holdfast run`
until the script of rank 0 begins, which on a busy machine says little.
"""

import argparse
import contextlib
import os
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

from table import Row, report

BUCKET = "data"
SCRIPT = """
import os, sys, time
begun = time.time()
print(begun, sum(one.stat().st_size for one in os.scandir(os.environ["HOLDFAST_DATA_TOKENS"])))
"""


class Server:
    """One that speaks S3 and counts what is asked."""

    def __init__(self) -> None:
        self._app = DomainDispatcherApplication(create_backend_app)
        self.reads, self.others, self.bytes = 0, 0, 0
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        """As WSGI has it."""
        is_read = environ["REQUEST_METHOD"] == "GET" and environ["PATH_INFO"].count("/") > 1
        answer = b"".join(self._app(environ, start))
        with self._lock:
            self.reads += is_read
            self.others += not is_read
            self.bytes += len(answer) if is_read else 0
        return [answer]


def main() -> None:
    args = _arguments()
    count, size = (4, 1 << 20) if args.quick else (32, 8 << 20)
    with tempfile.TemporaryDirectory() as folder, _served() as (server, endpoint):
        rows = measure(Path(folder), server, endpoint, [secrets.token_bytes(size)] * count)
    title = f"Starts with a data set of {count} objects, {count * size / 1e6:.0f} MB"
    report(title, rows, as_json=args.json)


def measure(folder: Path, server: Server, endpoint: str, objects: list[bytes]) -> dict[str, Row]:
    """A row for each start."""
    lines = []
    for number, data in enumerate(objects):
        _put(endpoint, f"tokens/{number:04}.bin", data)
        lines.append(f"{sha256(data).hexdigest()}  {number:04}.bin\n")
    pin = {"sha256": sha256("".join(lines).encode()).hexdigest()}
    starts: dict[str, dict[str, str]] = {
        "first start": {},
        "second start": {},
        "with sha256 in the job": pin,
    }
    rows: dict[str, Row] = {}
    for number, (name, keys) in enumerate(starts.items()):
        before = server.reads, server.others, server.bytes
        start_s, seen = _start(folder, f"job-{number}", endpoint, keys)
        assert seen == sum(map(len, objects)), "the script saw all of it"
        rows[name] = {
            "object_reads": server.reads - before[0],
            "read_bytes": server.bytes - before[2],
            "other_requests": server.others - before[1],
            "start_s": round(start_s, 2),
        }
    return rows


def _start(folder: Path, name: str, endpoint: str, keys: dict[str, str]) -> tuple[float, int]:
    """Run one job; seconds until its script began, and the bytes that it saw."""
    (folder / "script.py").write_text(SCRIPT)
    data = {
        "name": "tokens", "source": f"s3://{BUCKET}/tokens", "endpoint": endpoint,
        "cache": {"folder": str(folder / "cache")}, **keys,
    }  # fmt: skip
    job = {"name": name, "script": "script.py", "framework": "command", "nodes": 2}
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump({**job, "workers_per_node": 1, "datasets": [data]}))
    began = time.time()
    home = folder / "home"
    subprocess.run(
        [sys.executable, "-m", "holdfast.cli", "run", str(file)],
        env={**os.environ, "HOLDFAST_HOME": str(home)},
        check=True,
        stdout=subprocess.DEVNULL,
    )
    told = (home / "jobs" / name / "logs" / "attempt-1" / "rank-0.log").read_text().split()
    return float(told[0]) - began, int(told[1])


def _put(endpoint: str, key: str, data: bytes) -> None:
    import s3fs  # type: ignore[import-untyped]

    store = s3fs.S3FileSystem(client_kwargs={"endpoint_url": endpoint})
    if not store.exists(BUCKET):
        store.mkdir(BUCKET)
    store.pipe_file(f"{BUCKET}/{key}", data)


@contextlib.contextmanager
def _served() -> Iterator[tuple[Server, str]]:
    import logging

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    keys = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION")
    os.environ.update(dict.fromkeys(keys, "us-east-1"), AWS_EC2_METADATA_DISABLED="true")
    counted = Server()
    server = make_server("127.0.0.1", 0, counted, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield counted, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="4 MB instead of 268 MB")
    parser.add_argument("--json", action="store_true", help="end with a line of JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()

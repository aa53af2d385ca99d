"""Places to save in: a folder, a server that speaks S3, fsspec's memory, and those listed in
HOLDFAST_TEST_PLACES, with blanks between them: buckets or emulators (`gs://...`, `az://...`).
"""

import os
import secrets
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.open_store import open_store
from holdfast.checkpoint.stores import CheckpointStore
from tests.checkpoint.making import Snapshot
from tests.patience import PATIENCE_S

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """The address of a server with the S3 protocol."""
    import logging

    from moto.server import ThreadedMotoServer  # 0.7 s of a core, for this alone

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patched:
        _describe_services_once(patched)
        yield f"http://{host}:{port}"
    server.stop()


def _describe_services_once(patched: pytest.MonkeyPatch) -> None:
    """Each new client reads what S3 is anew, for half a second: megabytes of JSON."""
    from botocore.loaders import JSONFileLoader  # type: ignore[import-untyped]

    load, kept = JSONFileLoader.load_file, dict[str, Any]()

    def load_once(self: Any, path: str) -> Any:
        if path not in kept:
            kept[path] = load(self, path)
        return kept[path]

    patched.setattr(JSONFileLoader, "load_file", load_once)


@pytest.fixture
def s3_place(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A new bucket; the client finds it as any other does, by the environment."""
    for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": s3_endpoint}.items():
        monkeypatch.setenv(name, value)
    bucket = f"bucket-{secrets.token_hex(6)}"
    request = urllib.request.Request(f"{s3_endpoint}/{bucket}", method="PUT")
    urllib.request.urlopen(request, timeout=PATIENCE_S).close()  # without a client of its own
    return f"s3://{bucket}/some/job"


ELSEWHERE = os.environ.get("HOLDFAST_TEST_PLACES", "").split()


@pytest.fixture(params=["folder", "s3", "memory", *ELSEWHERE])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """One of each kind of place."""
    if request.param == "s3":
        return str(request.getfixturevalue("s3_place"))
    if request.param == "memory":
        return f"memory://{secrets.token_hex(6)}/job"
    if request.param in ELSEWHERE:
        return f"{request.param}/{secrets.token_hex(6)}"
    return str(tmp_path / "some" / "job")


@pytest.fixture
def store(place: str) -> CheckpointStore:
    """A store at that place."""
    return open_store(place)


@pytest.fixture
def folder(tmp_path: Path) -> CheckpointStore:
    """A store in a folder."""
    return open_store(str(tmp_path / "shelf"))


@pytest.fixture
def snapshot() -> Iterator[Snapshot]:
    """The arena of a single rank."""
    made = Snapshot()
    yield made
    made.close()

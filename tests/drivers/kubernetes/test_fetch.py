"""Data is fetched whole and right, or the node does not start."""

import functools
import hashlib
import http.server
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.drivers.kubernetes.manifests import pod, storage
from holdfast.drivers.kubernetes.manifests.part import Part
from holdfast.drivers.kubernetes.manifests.request import Request
from holdfast.spec import job_from_dict
from tests.patience import PATIENCE_S


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves a folder; a file called `slow` never ends."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        """Say nothing."""

    def do_GET(self) -> None:
        """Half of a slow file, then silence until the client is gone."""
        if not self.path.endswith("slow"):
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b"x" * 500)
        self.wfile.flush()
        self.rfile.read(1)
        return None


@pytest.fixture
def web(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A real web server and its folder."""
    folder = tmp_path / "web"
    folder.mkdir()
    serve = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", folder
        server.shutdown()


def command(folder: Path, *downloads: dict[str, object]) -> list[str]:
    """The command of the init container, as rendered."""
    dataset = {"name": "d", "path": str(folder), "download": list(downloads)}
    image = {"name": "img", "python": sys.executable}
    job = job_from_dict(
        {"name": "a", "script": "t.py", "image": image, "datasets": [dataset]}, where="test"
    )
    (init,) = pod.template(Request(job, "job", "plain"), Part())["spec"]["initContainers"]
    assert init["volumeMounts"] == [{"name": "data-d", "mountPath": str(folder)}]
    words: list[str] = init["command"]
    return words


def run(words: list[str]) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    return subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def test_a_file_is_fetched_once(web: tuple[str, Path], tmp_path: Path) -> None:
    url, folder = web
    (folder / "a.bin").write_bytes(b"abc" * 10_000)
    digest = hashlib.sha256(b"abc" * 10_000).hexdigest()
    words = command(tmp_path / "data", {"url": f"{url}/a.bin", "sha256": digest})
    first, second = run(words), run(words)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert (tmp_path / "data" / "a.bin").read_bytes() == b"abc" * 10_000
    assert digest in first.stdout
    assert "already present" in second.stdout


def test_a_wrong_hash_stops_the_node_and_leaves_nothing(
    web: tuple[str, Path], tmp_path: Path
) -> None:
    url, folder = web
    (folder / "a.bin").write_bytes(b"abc")
    done = run(command(tmp_path / "data", {"url": f"{url}/a.bin", "sha256": "0" * 64}))
    assert done.returncode == 1
    assert "the file was discarded" in done.stderr
    assert [p.name for p in (tmp_path / "data").iterdir()] == [".holdfast-fetch"]


@pytest.mark.parametrize("kind", ["tar.gz", "zip"])
def test_archives_are_unpacked(web: tuple[str, Path], tmp_path: Path, kind: str) -> None:
    url, folder = web
    if kind == "zip":
        with zipfile.ZipFile(folder / "a.zip", "w") as archive:
            archive.writestr("inner/x.txt", "hello")
    else:
        with tarfile.open(folder / "a.tar.gz", "w:gz") as archive_:
            entry = tarfile.TarInfo("inner/x.txt")
            entry.size = 5
            archive_.addfile(entry, io.BytesIO(b"hello"))
    done = run(command(tmp_path / "data", {"url": f"{url}/a.{kind}", "unpack": True}))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "data" / "inner" / "x.txt").read_text() == "hello"
    assert not (tmp_path / "data" / f"a.{kind}").exists()


def test_an_archive_cannot_write_elsewhere(web: tuple[str, Path], tmp_path: Path) -> None:
    url, folder = web
    with tarfile.open(folder / "a.tar", "w") as archive:
        entry = tarfile.TarInfo("../escaped")
        archive.addfile(entry, io.BytesIO(b""))
    done = run(command(tmp_path / "data", {"url": f"{url}/a.tar", "unpack": True}))
    assert done.returncode != 0
    assert not (tmp_path / "escaped").exists()


def test_a_download_that_is_killed_is_begun_again(web: tuple[str, Path], tmp_path: Path) -> None:
    url, folder = web
    words = command(tmp_path / "data", {"url": f"{url}/slow"})
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    part = tmp_path / "data" / ".slow.part"
    while process.poll() is None and not part.exists():
        os.sched_yield()
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "data" / "slow").exists()
    (folder / "whole").write_bytes(b"whole")
    words[-1] = json.dumps([{"url": f"{url}/whole", "sha256": None, "unpack": False}])
    assert run(words).returncode == 0
    assert (tmp_path / "data" / "whole").read_bytes() == b"whole"


def test_pods_of_one_machine_share_a_folder(web: tuple[str, Path], tmp_path: Path) -> None:
    url, folder = web
    (folder / "a.bin").write_bytes(os.urandom(3_000_000))
    words = command(tmp_path / "data", {"url": f"{url}/a.bin"})
    several = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    said = [process.communicate(timeout=PATIENCE_S)[0] for process in several]
    assert [process.returncode for process in several] == [0] * 4
    assert sum("already present" in text for text in said) == 3


def test_the_program_comes_without_its_docstring() -> None:
    words = command(Path("/d"), {"url": "https://example.org/a"})
    assert words[2].startswith("import fcntl\n")
    assert storage.SHM_PER_WORKER == 2 << 30

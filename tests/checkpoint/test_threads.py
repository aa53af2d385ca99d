"""Several threads read the first checkpoint, frame or storage page there is, all at once."""

import subprocess
import sys

import pytest

from tests.more import thinned

READERS = {
    "manifest": "lambda: manifest.decode(sealed, manifest.Manifest, 'x')",
    "rank": "lambda: manifest.decode(sealed, manifest.RankPart, 'x')",
    "index": "lambda: index.read_index(bytes([0x93, 0x80, 0x90, 0xA0]))",
    "frame": "lambda: msgspec.msgpack.decode(bytes([0x80]), type=known(protocol.Setup))",
    "worker info": "lambda: msgspec.json.decode(b'{}', type=known(storage_page.WorkerInfo))",
}
THREADS = """
import msgspec, sys, threading
sys.setswitchinterval(1e-6)
from holdfast.decoding import known
from holdfast.agent.storage import protocol
from holdfast.checkpoint import storage_page, index, manifest
body = b'{"parts":[],"xxh3_128":"'
sealed = body + manifest.digest(body).encode() + b'"}'
barrier, heard = threading.Barrier(8), []
def go():
    barrier.wait()
    try:
        heard.append((READER)())
    except Exception as error:
        heard.append(error)
threads = [threading.Thread(target=go) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert len(heard) == 8, heard
"""


@pytest.mark.parametrize("reader", thinned(READERS, 3))
def test_the_first_to_read_something_may_be_several(reader: str) -> None:
    """Each time in a new interpreter: what was read before is known."""
    for _ in range(6):
        code = THREADS.replace("READER", READERS[reader])
        ended = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, ended.stderr

"""What the engine for Ray says and how it names what it makes; the rest is tried on a cluster."""

import subprocess
import sys

import pytest

from holdfast.drivers.ray import room

SAYS = """
from pathlib import Path
import pytest, ray, sys
from ray._private.utils import check_version_info
from holdfast.drivers.ray import engine
from holdfast.errors import Error

def init(**_):
    cluster = {"ray_version": "1.13.0", "python_version": "3.8.1"}
    check_version_info(cluster, "node 10.0.0.1", raise_on_mismatch=True)

ray.init = init
with pytest.raises(Error) as raised:
    engine.connect("auto", Path("/nowhere/gpt"))
assert "has other versions than this machine" in raised.value.what
for version in ("Ray: 1.13.0", "Python: 3.8.1", f"Ray: {ray.__version__}"):
    assert version in raised.value.why, raised.value.why
folder = Path(sys.argv[1], "gpt")
folder.mkdir()
names = set()
for token in ("a", "b", "a"):  # containers with the same path
    (folder / "token").write_text(token)
    names.add(engine.own_name(folder))
assert len(names) == 2 and all(name.startswith("holdfast-gpt-") for name in names)
"""


def test_other_versions_are_told_and_equal_paths_are_no_equal_jobs(tmp_path: object) -> None:
    pytest.importorskip("holdfast.drivers.ray")
    done = subprocess.run(
        [sys.executable, "-c", SAYS, str(tmp_path)], capture_output=True, text=True, check=False
    )
    if "No module named 'ray'" in done.stderr:
        pytest.skip("Ray is not installed")
    assert done.returncode == 0, done.stderr


def test_what_ray_lacks_can_be_seen_beside_what_was_asked_for() -> None:
    bundle = {"CPU": 32.0, "GPU": 8.0, "memory": 256.0 * 2**30, "rack_a": 1.0}
    total = {"CPU": 128.0, "GPU": 16.0, "memory": 1.0e12, "node:10.0.0.1": 1.0}
    left = {"CPU": 12.5, "memory": 2.5 * 2**30}
    assert room.asked(bundle) == "CPU: 32, GPU: 8, memory: 256 GiB, rack_a: 1"
    assert room.free(bundle, left, total, 2) == (
        "{CPU: 12.5 of 128, GPU: 0 of 16, memory: 2.5 GiB of 931.3 GiB, rack_a: 0 of 0} "
        "on 2 machines"
    )

"""A spare on another machine gets the code that members have compiled, and takes over without a
compiler."""

from pathlib import Path

import pytest

from tests.drivers.kubernetes.cluster.fake import FakeCluster, in_thread
from tests.end_to_end.kubernetes.cluster import KUBECONFIG, OVERLAY, RealCluster, until
from tests.end_to_end.kubernetes.job import ClusterJob
from tests.more import long

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]


def made(it: FakeCluster, uid: str) -> set[str]:
    """Libraries and entries of a pod's cache, by their names: what a compiler has left there."""
    (compiled,) = (it.folder / "pods" / uid[:13]).rglob("compiled")
    files = (path for path in compiled.rglob("*") if path.is_file())
    return {path.name for path in files if path.suffix == ".so" or "fxgraph" in path.parts}


@long
def test_a_spare_takes_over_without_compiling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with in_thread(machines=4, engines=("jobset",)) as it:
        monkeypatch.setenv(KUBECONFIG, str(it.do(lambda it: it.kubeconfig())))
        monkeypatch.setenv("KUBECONFIG", "")
        monkeypatch.delenv(OVERLAY, raising=False)
        cluster = RealCluster("holdfast-e2e-compiled")
        cluster.make()
        job = ClusterJob(cluster, tmp_path, "pods", name="compiled", script="compiled.py", args=[])
        script = Path(__file__).with_name("compiled.py")
        (tmp_path / "compiled" / "compiled.py").write_text(script.read_text())
        job.start().trains(spares=1)
        members = {job.member(rank).uid for rank in (0, 1)}
        (spare,) = (p.uid for p in cluster.pods(job.name) if p.uid not in members)
        code = made(it, job.member(0).uid)
        assert any(name.endswith(".so") for name in code)
        until(lambda: code <= made(it, spare), "the spare to have it")
        cluster.delete_pod(job.member(1))
        job.trains(attempt=2)
        assert spare in {job.member(rank).uid for rank in (0, 1)}
        assert made(it, spare) == code, "nothing was compiled there"
        cluster.holdfast("stop", job.name)
        job.ends("stopped")

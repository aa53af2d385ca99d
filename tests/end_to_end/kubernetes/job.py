"""A job on a real cluster: the GPT on two nodes and a spare, watched as a user can."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from holdfast.drivers.kubernetes.pods import Pod
from tests.end_to_end.kubernetes.cluster import DEADLINE_S, RealCluster, until

ROOT = Path(__file__).resolve().parents[3]
SMALL = ("--layers", "2", "--heads", "4", "--width", "64", "--context", "64", "--batch-size", "4")
IMAGE = "holdfast-e2e"  # what the overlay replaces


class ClusterJob:
    """One job, submitted by `start()`."""

    def __init__(
        self, cluster: RealCluster, folder: Path, engine: str, *, name: str,
        steps: int = 400, deadly: bool = False, **spec: Any,
    ) -> None:  # fmt: skip
        self.cluster, self.engine, self.name = cluster, engine, name
        code = folder / name
        shutil.copytree(ROOT / "examples" / "gpt", code, ignore=shutil.ignore_patterns("*.yaml"))
        shutil.copy(Path(__file__).with_name("deadly.py"), code)
        script, args = ("deadly.py", ["train.py"]) if deadly else ("train.py", [])
        job = {
            "name": name,
            "image": {"name": IMAGE, "root": True},  # whoever the image runs as
            "code": name,
            "script": script,
            "args": [*args, "--steps", str(steps), *SMALL],
            "env": {"OMP_NUM_THREADS": "1"},
            "nodes": {"count": 2, "spares": 1},
            "workers_per_node": 1,
            "resources": {"cpu": "500m", "memory": "1500Mi", "shm": "256Mi"},
            "snapshots": {"every_steps": 1},
            "kubernetes": {"engine": engine},
            "overlay": cluster.overlay,
            **spec,
        }
        self.file = folder / f"{name}.yaml"
        self.file.write_text(yaml.safe_dump(job))

    def start(self) -> "ClusterJob":
        """Submit it."""
        self.cluster.holdfast("submit", str(self.file))
        return self

    # ── what can be seen ──

    def status(self) -> dict[str, Any]:
        """`holdfast status`."""
        found: dict[str, Any] = self.cluster.told("status", self.name)
        return found

    def incidents(self) -> list[dict[str, Any]]:
        """`holdfast incidents`."""
        found: list[dict[str, Any]] = self.cluster.told("incidents", self.name)
        return found

    def goodput(self) -> dict[str, Any]:
        """`holdfast goodput`."""
        found: dict[str, Any] = self.cluster.told("goodput", self.name)
        return found

    def member(self, rank: int) -> Pod:
        """The pod of a node that trains."""
        name = next(n["name"] for n in self.status()["nodes"] if n["rank"] == rank)
        return next(p for p in self.cluster.pods(self.name) if p.metadata.name == name)

    # ── waiting ──

    def until(
        self, condition: Callable[[dict[str, Any]], Any], what: str, deadline_s: float = DEADLINE_S
    ) -> dict[str, Any]:
        """Wait until something is true of the status."""
        seen: dict[str, Any] = {}

        def holds() -> bool:
            nonlocal seen
            seen = self.status()
            found = bool(condition(seen))
            assert found or seen["outcome"] is None, f"the job has ended before: {what}"
            return found

        try:
            until(holds, what, deadline_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\nlast status: {seen}") from None
        return seen

    def trains(self, *, attempt: int = 1, spares: int = 0, after: int = 0) -> dict[str, Any]:
        """Wait until it trains in this attempt or a later one, with so many spares ready."""
        return self.until(
            lambda s: s["phase"] == "running" and s["attempt"] >= attempt
            and (s["step"] or 0) > after
            and sum(n["state"] == "spare" for n in s["nodes"]) >= spares,
            f"attempt {attempt} to train"
            + (f", past step {after}" if after else "")
            + (f", with {spares} spares that are ready" if spares else ""),
        )  # fmt: skip

    def ends(self, outcome: str = "succeeded") -> None:
        """Wait for the end, for the books to balance, and for the engine to agree."""
        status = self.until(lambda s: s["outcome"] is not None, f"the job to end ({outcome})")
        assert status["outcome"] == outcome, status
        self.books_balance()
        until(self._is_quiet, "every pod of the job to have ended")

    def books_balance(self) -> None:
        """The ledger adds up, and every incident's bill to its cost."""
        goodput = self.goodput()
        assert abs(sum(goodput["buckets"].values()) - goodput["wall_s"]) < 0.001
        for incident in self.incidents():
            assert abs(sum(incident["bill"].values()) - incident["lost_s"]) < 0.001

    def _is_quiet(self) -> bool:
        return all(pod.ended or pod.leaving for pod in self.cluster.pods(self.name))

    def delete(self) -> None:
        """`holdfast delete`, after which nothing is left."""
        self.cluster.holdfast("delete", self.name)
        until(lambda: not self.cluster.pods(self.name), "nothing to be left")


def took(since: float) -> float:
    """Seconds since a moment of `time.monotonic()`."""
    return time.monotonic() - since

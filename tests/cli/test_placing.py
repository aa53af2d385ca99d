"""A job file that names clusters: submitted to the first that admits it, from the command line."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.drivers.kubernetes.cluster import CONFIG_MAPS, DEPLOYMENTS
from tests import warm
from tests.drivers.kubernetes.cluster import rbac
from tests.drivers.kubernetes.cluster.fake import FakeCluster, in_thread
from tests.drivers.kubernetes.cluster.mounts import kubeconfig
from tests.more import long
from tests.patience import MAY_BE_SILENT, PATIENCE_S, until
from tests.warm import Warm

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]
JOB: dict[str, Any] = {
    "name": "gpt",
    "image": "img:1",
    "command": ["sleep", "1000"],
    "nodes": 2,
    "workers_per_node": 1,
    "kubernetes": {"engine": "job"},
    "checkpoints": {"archive": {"url": "s3://bucket/runs"}},
    "clusters": [{"context": "east"}, {"context": "west"}],
}


class Sites:
    """Two clusters in one kubeconfig, whose current context is neither of them."""

    def __init__(self, east: FakeCluster, west: FakeCluster, folder: Path, home: Path) -> None:
        self.east, self.west, self.folder = east, west, folder
        self.file = folder / "job.yaml"
        paths = []
        for name, it in (("east", east), ("west", west)):
            said = yaml.safe_load(kubeconfig(it.url, "default", rbac.ADMIN, name))
            said.pop("current-context")
            path = folder / f"{name}.conf"
            path.write_text(yaml.safe_dump(said))
            paths.append(str(path))
        self.env = {**os.environ, "KUBECONFIG": ":".join(paths), "HOLDFAST_HOME": str(home)}
        self.job()

    def job(self, **keys: Any) -> None:
        """Another job file."""
        self.file.write_text(json.dumps({**JOB, **keys}))

    def start(self, *words: str) -> Warm:
        """`holdfast WORDS job.yaml --on kubernetes`."""
        return warm.start(*words, str(self.file), "--on", "kubernetes", env=self.env)

    def holdfast(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """The same, to its end."""
        process = self.start(*words)
        out, err = process.communicate(timeout=PATIENCE_S)
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    @staticmethod
    def has(it: FakeCluster) -> bool:
        """Whether anything of the job is there."""
        found = it.do(lambda it: it.store.all(CONFIG_MAPS, "default"))
        return bool(found) or it.do(lambda it: bool(it.store.all(DEPLOYMENTS, "default")))


def sites(tmp_path: Path, home: Path, **options: Any) -> Iterator[Sites]:
    with ExitStack() as stack:
        east = stack.enter_context(in_thread(machines=0, images={}))
        west = stack.enter_context(in_thread(**options))
        yield Sites(east, west, tmp_path, home)


@pytest.fixture
def barren(tmp_path: Path, home: Path) -> Iterator[Sites]:
    """The east has no machine; the west has one that places pods and can pull no image."""
    yield from sites(tmp_path, home, machines=1, images={})


@pytest.fixture
def real(tmp_path: Path, home: Path) -> Iterator[Sites]:
    """The east has no machine; in the west pods run."""
    for made in sites(tmp_path, home, machines=3):
        made.job(recovery=MAY_BE_SILENT)
        yield made


def refuse(it: FakeCluster) -> None:
    """Nobody may make a Deployment there."""
    it.do(lambda it: it.server.access.denied.add(("patch", "deployments")))


def test_a_rehearsal_says_which_would_take_it_and_why_the_others_not(barren: Sites) -> None:
    run = barren.holdfast("submit", "--dry-run", "server")
    assert run.returncode == 0, run.stderr
    east, west = run.stdout.splitlines()
    assert east.split()[:2] == ["not", "east"]
    assert "capacity for 0 of 2 nodes" in east and "time out after 600 s" in east
    assert west.startswith("accepts it") and "west" in west
    assert not barren.has(barren.east) and not barren.has(barren.west)
    run = barren.holdfast("submit", "--dry-run", "client")
    assert "kind: Deployment" in run.stdout and "east, west" in run.stderr


def test_a_rehearsal_in_which_none_takes_it_fails_with_all_reasons(barren: Sites) -> None:
    refuse(barren.west)
    choices = [*JOB["clusters"], {"context": "north"}]
    barren.job(clusters=choices)
    run = barren.holdfast("submit", "--dry-run", "server", "--json")
    told = json.loads(run.stdout.splitlines()[0])
    assert run.returncode == 3 and told["takes"] is None
    whys = {one["context"]: one["why"] for one in told["clusters"]}
    assert "capacity" in whys["east"] and "Deployment" in whys["west"]
    assert "no context 'north'" in whys["north"]


def test_a_cluster_that_refuses_is_passed_over_and_the_next_one_runs_it(barren: Sites) -> None:
    refuse(barren.east)
    run = barren.holdfast("submit")
    assert run.returncode == 0, run.stderr
    assert run.stdout == "gpt\n" and "west runs it" in run.stderr
    assert "--context west" in run.stderr and "federate" in run.stderr
    assert barren.has(barren.west) and not barren.has(barren.east)
    again = barren.holdfast("submit", "--replace")
    assert (again.returncode, "error[job-running]" in again.stderr) == (2, True)
    assert "--context west" in again.stderr


def test_what_every_cluster_refuses_is_an_error_and_leaves_nothing(barren: Sites) -> None:
    refuse(barren.east)
    refuse(barren.west)
    run = barren.holdfast("submit")
    assert (run.returncode, "error[clusters-refuse]" in run.stderr) == (3, True)
    assert "east: " in run.stderr and "west: " in run.stderr
    assert not barren.has(barren.east) and not barren.has(barren.west)


def test_a_context_makes_it_a_plain_submission(barren: Sites) -> None:
    run = barren.holdfast("submit", "--context", "east")
    assert run.returncode == 0, run.stderr
    assert barren.has(barren.east) and not barren.has(barren.west)


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"kubernetes": {"engine": "job", "mode": "plain"}}, "mode"),
        ({"kubernetes": {"engine": "cronjob"}, "schedule": {"cron": "@daily"}}, "a schedule"),
    ],
)
def test_what_cannot_be_placed_is_refused_before_anybody_is_asked(
    barren: Sites, keys: dict[str, Any], why: str
) -> None:
    barren.job(**keys)
    run = barren.holdfast("submit")
    assert run.returncode == 2 and why in run.stderr, run.stderr


@long
def test_a_run_is_followed_in_the_cluster_that_took_it_and_stopped_there(real: Sites) -> None:
    refuse(real.east)
    process = real.start("run")
    assert until(lambda: _trains(real.west) or process.poll() is not None)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130 and "the job has ended: stopped" in err, err
    again = real.holdfast("submit")
    assert (again.returncode, "error[job-exists]" in again.stderr) == (2, True)
    assert real.holdfast("submit", "--replace").returncode == 0


def _trains(it: FakeCluster) -> bool:
    found = it.do(lambda it: it.store.find(CONFIG_MAPS, "default", "gpt-record"))
    return found is not None and '"phase":"running"' in found["data"]["status.json"]

"""Jobs in a cluster through the command line: real processes there, real HTTP between."""

import copy
import gzip
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.drivers.kubernetes.cluster import (
    CLAIMS,
    CONFIG_MAPS,
    CRON_JOBS,
    DEPLOYMENTS,
    JOBS,
    NODES,
)
from holdfast.drivers.kubernetes.machines import EXPIRES, OUT_OF_SERVICE, OWNER, REASON, TAINT
from holdfast.drivers.kubernetes.manifests.names import JOB, MANAGED_BY
from record import record as large_record
from tests.cli.patient import Patient
from tests.drivers.kubernetes.cluster import admission
from tests.drivers.kubernetes.cluster.fake import FakeCluster, in_thread
from tests.drivers.kubernetes.cluster.faults import Fault
from tests.more import long
from tests.otlp import OtlpReceiver
from tests.patience import MAY_BE_SILENT, PATIENCE_S, until
from tests.warm import PIPE, Warm

SMALL = Path(__file__).parents[1] / "end_to_end/local/scripts/small.py"
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]


class Site:
    """A cluster and a folder with a job file, and the command line in front of both."""

    def __init__(self, it: FakeCluster, folder: Path, home: Path) -> None:
        self.it, self.folder = it, folder
        self.file = folder / "job.yaml"
        self.recovery = MAY_BE_SILENT
        config = str(it.do(lambda it: it.kubeconfig()))
        self.env = {**os.environ, "KUBECONFIG": config, "HOLDFAST_HOME": str(home)}

    def script(self, body: str, **keys: Any) -> None:
        """The job `gpt`: a shell script on two nodes."""
        (self.folder / "tool.sh").write_text(f"#!/bin/sh\n{body}\n")
        (self.folder / "tool.sh").chmod(0o755)
        said = {"name": "gpt", "image": "img:1", "command": [str(self.folder / "tool.sh")],
                "nodes": 2, "workers_per_node": 1, **keys,
                "recovery": {**self.recovery, **keys.get("recovery", {})}}  # fmt: skip
        self.file.write_text(json.dumps(said))

    def start(self, *words: str, folder: Path | None = None, **variables: str) -> Warm:
        """`holdfast WORDS --on kubernetes`."""
        env = {**self.env, "HOLDFAST_ON": "kubernetes", **variables}
        return Patient(
            words, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=env, text=True, cwd=folder
        )  # fmt: skip

    def holdfast(self, *words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        """The same, to its end."""
        process = self.start(*words, folder=None, **variables)
        out, err = process.communicate(timeout=PATIENCE_S)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def answer(self, *words: str) -> Any:
        """What it says as JSON."""
        run = self.holdfast(*words, "--json")
        assert run.returncode == 0, run.stderr
        return json.loads(run.stdout)

    def until(self, true: Callable[[], bool]) -> None:
        """Wait until something holds."""
        assert until(true), self.it.do(lambda it: it.story())

    def printed(self, words: str) -> bool:
        """Whether a worker has said this, as its pod shows it."""
        return self.it.do(lambda it: any(words in it.output(pod) for pod in it.pods()))

    def file_of(self, name: str) -> Any:
        """A ConfigMap, if it is there."""
        return self.it.do(lambda it: it.store.find(CONFIG_MAPS, "default", name))


@pytest.fixture
def site(tmp_path: Path, home: Path) -> Iterator[Site]:
    """A cluster in which every image can be pulled."""
    with in_thread(machines=3) as it:
        yield Site(it, tmp_path, home)


@pytest.fixture
def barren(tmp_path: Path, home: Path) -> Iterator[Site]:
    """A cluster in which no image can be pulled: nothing runs, and everything else is quick."""
    with in_thread(machines=1, images={}) as it:
        made = Site(it, tmp_path, home)
        made.recovery = {}  # plain mode has no agents
        made.script("exit 0")
        yield made


# ── a job, from the laptop ────────────────────────────────────────────────────────────────────


def test_a_job_is_run_to_its_end_and_every_verb_tells_of_it(site: Site) -> None:
    site.script("echo hello $RANK; sleep 1")
    run = site.holdfast("run", str(site.file))
    assert run.returncode == 0, run.stderr
    assert "gpt: succeeded, attempt 1" in run.stdout
    assert "gpt succeeded after" in run.stderr
    assert site.answer("status", "gpt")["outcome"] == "succeeded"
    assert site.answer("incidents") == []
    ledger = site.answer("goodput", "gpt")
    assert sum(ledger["buckets"].values()) == pytest.approx(ledger["wall_s"], abs=0.01)
    assert "gpt has had no incidents: succeeded" in site.holdfast("why").stdout
    [listed] = site.answer("list")
    assert (listed["job"], listed["namespace"], listed["phase"]) == ("gpt", "default", "succeeded")
    again = site.holdfast("run", str(site.file))
    assert (again.returncode, "error[job-exists]" in again.stderr) == (2, True)
    assert "objects deleted" in site.holdfast("delete", "gpt").stdout
    assert site.holdfast("status", "gpt").returncode == 4


def test_what_is_told_from_a_stale_record_with_missing_shards_says_so(barren: Site) -> None:
    barren.script("sleep 1000")
    assert barren.holdfast("submit", str(barren.file)).returncode == 0
    large = large_record(700, 2)
    entry = {"digest": "x", "size": 1, "shards": [1]}
    index = {"at": time.time() - 900, "parts": {"nodes": [entry], "incidents": [entry]}}
    head = {"status.json": msgspec.structs.replace(large.status, nodes=()), "index.json": index}
    data = {
        k: msgspec.json.encode(v).decode()
        for k, v in (head | {"goodput.json": large.goodput}).items()
    }
    meta = {"name": "gpt-record", "labels": {JOB: "gpt", MANAGED_BY: "holdfast"}}
    barren.it.do(
        lambda it: it.store.create(CONFIG_MAPS, "default", {"metadata": meta, "data": data})
    )
    for verb in ("status", "why"):
        run = barren.holdfast(verb, "gpt", "--json")
        assert run.returncode == 3, run.stderr
        assert "error[record-stale]: the record of job gpt was last published at " in run.stderr
        assert "error[record-incomplete]: not all of the record of job gpt" in run.stderr
        assert "gpt-record are not those of its index" in json.loads(run.stdout)["incomplete"]
        if verb == "status":
            assert json.loads(run.stdout)["recorded_at"] == pytest.approx(index["at"])


def test_a_job_that_fails_is_explained_with_the_exit_status_of_a_local_run(site: Site) -> None:
    receiver = OtlpReceiver()
    site.script(
        '[ "$RANK" = 1 ] && exit 7; sleep 60',
        recovery={"max_restarts": 1},
        otlp={"endpoint": receiver.url},
    )
    run = site.holdfast("run", str(site.file))
    assert run.returncode in (1, 5), run.stdout + run.stderr
    incidents = site.answer("incidents")
    assert until(lambda: len(receiver.roots()) == len(incidents))
    assert [one.trace_id.hex() for one in receiver.roots()] == [i["trace_id"] for i in incidents]
    assert {one["k8s.namespace.name"] for one in receiver.resources()} == {"default"}
    receiver.close()
    assert incidents[0]["exit_code"] == 7
    assert incidents[0]["rank"] == 1
    told = site.holdfast("why", "--incident", "1")
    assert "incident 1 of" in told.stdout
    assert "holdfast logs gpt --on kubernetes --rank 1" in told.stderr
    missing = site.holdfast("why", "--incident", "99")
    assert "holdfast incidents gpt --on kubernetes" in missing.stderr


def test_stacks_of_a_job_show_where_its_workers_stand_until_a_stop_that_waits(site: Site) -> None:
    text = "import time\ndef waits_here():\n    print('up', flush=True)\n    time.sleep(600)\n"
    (site.folder / "waits.py").write_text(f"{text}waits_here()\n")
    site.script(f"exec {sys.executable} {site.folder / 'waits.py'}")
    assert site.holdfast("run", str(site.file), "--detach").returncode == 0
    refused = site.holdfast("stacks", "none")
    assert refused.returncode == 4, refused.stderr
    site.until(lambda: site.printed("up"))

    def stand_together() -> bool:
        """Where they wait: one of them may not have come so far, or not have answered in time."""
        groups = site.answer("stacks", "gpt")["groups"]
        stacks = [(one["ranks"], one["threads"][0]["frames"]) for one in groups if one["threads"]]
        return [
            (ranks, any("waits_here" in frame for frame in frames)) for ranks, frames in stacks
        ] == [([[0, 1]], True)]

    site.until(stand_together)
    site.until(lambda: "waits_here" in site.holdfast("stacks", "gpt", "--rank", "1").stdout)
    checked = site.answer("check", "gpt")
    network: dict[str, Any] = {"links": [], "lines": [], "slow": {}}
    assert checked == {"job": "gpt", "ok": True, "spares": [], "missing": [], "network": network}
    inside = site.holdfast("chaos", "gpt", "--fault", "SIGSTOP", "--rank", "1")
    assert inside.returncode == 3, inside.stderr
    assert re.search(r"help: kubectl exec gpt-\S+ -- kill -STOP \d+", inside.stderr), inside.stderr
    hurt = site.answer("chaos", "gpt", "--fault", "pod deleted", "--rank", "1")
    assert hurt["rank"] == 1
    site.until(lambda: bool(site.answer("incidents", "gpt")))
    found, *_ = site.answer("incidents", "gpt")
    assert found["cause"] == "node-left" and hurt["pod"].startswith(found["node"]), found
    none = site.holdfast("chaos", "gpt", "--fault", "pod deleted", "--rank", "7")
    assert none.returncode == 4 and "error[rank-not-found]" in none.stderr
    stop_waits_until_the_job_has_stopped(site)
    ended = site.holdfast("stacks", "gpt")
    assert "error[job-not-running]" in ended.stderr
    assert "holdfast why gpt --on kubernetes" in ended.stderr


def stop_waits_until_the_job_has_stopped(site: Site) -> None:
    refused = site.holdfast("delete", "gpt")
    assert (refused.returncode, "error[job-running]" in refused.stderr) == (2, True)
    assert site.answer("stop", "gpt", "--now")["asked"] is True
    assert site.answer("status", "gpt")["outcome"] == "stopped"
    assert site.answer("stop", "gpt")["asked"] is False
    ended = site.holdfast("resume", "gpt")
    assert (ended.returncode, "error[job-ended]" in ended.stderr) == (2, True)


@long
def test_the_nodes_of_a_job_in_a_cluster_are_profiled_and_repeat_a_step_and_it_goes_on(
    site: Site,
) -> None:
    claim = {"metadata": {"name": "disk"}, "spec": {}}
    site.it.do(lambda it: it.store.create(CLAIMS, "default", claim))
    saves = {"shared": {"path": "/saved", "pvc": "disk", "every_s": 1}}
    words = ["--out", str(site.folder), "--steps", "4000", "--pause", "0.05"]
    said = {"name": "gpt", "image": "img:1", "script": str(SMALL), "args": words, "nodes": 1,
            "workers_per_node": 1, "checkpoints": saves}  # fmt: skip
    site.file.write_text(json.dumps(said))
    submitted = site.holdfast("submit", str(site.file))
    assert submitted.returncode == 0, submitted.stderr

    def has_saved() -> bool:
        now = site.answer("status", "gpt")
        return any(tier["step"] for tier in now["checkpoints"]) and (now["step"] or 0) > 30

    site.until(has_saved)
    merged = site.folder / "trace.json.gz"
    found = site.answer("profile", "gpt", "--steps", "2", "--output", str(merged))
    [measured] = found["ranks"]
    assert measured["steps"] == 2 and measured["parts"]["compute"] > 0, measured
    assert found["trace"] == str(merged)
    events = json.loads(gzip.decompress(merged.read_bytes()))["traceEvents"]
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert "rank 0 · steps" in names and any(e["name"].startswith("aten::") for e in events)
    shown = site.start("profile", "gpt", "--steps", "1", folder=site.folder)
    out, said = shown.communicate(timeout=PATIENCE_S)
    assert "try first: " in out and "trace: gpt-profile.json.gz" in out, (out, said)
    left = {path.name for path in site.folder.glob("*.json.gz*")}
    assert left == {"trace.json.gz", "gpt-profile.json.gz"} and "kubectl" not in said
    told = site.answer("replay", "gpt", "--step", "30")
    assert (told["job"], told["step"], told["verdict"]) == ("gpt", 30, "genuine"), told
    missing = site.holdfast("replay", "gpt", "--step", "30", "--on", "other")
    assert missing.returncode == 1 and "it has no node other" in missing.stderr, missing.stderr
    [found] = site.answer("incidents", "gpt")
    assert found["cause"] == "repeated" and found["steps_lost"] == 0, found
    assert site.holdfast("stop", "gpt", "--now").returncode == 0
    ended = site.holdfast("replay", "gpt", "--step", "30")
    assert "error[job-not-running]" in ended.stderr


def test_logs_show_what_workers_print_and_follow_to_the_end(site: Site) -> None:
    go, once = site.folder / "go", list[str]()
    site.script(f"echo hello $RANK; while [ ! -e {go} ]; do sleep 0.2; done; echo bye $RANK")
    assert site.holdfast("submit", str(site.file)).stdout == "gpt\n"
    following = site.start("logs", "-f", "gpt")
    gathered = site.start("logs", "-f", "gpt", "--unique", "--rank", "1")
    site.until(lambda: site.printed("hello 1"))
    reader = threading.Thread(target=lambda: once.extend(gathered.stdout or ()))
    reader.start()
    site.until(lambda: "hello 1" in site.holdfast("logs", "gpt").stdout)
    one = site.holdfast("logs", "gpt", "--rank", "0").stdout
    assert one.splitlines()[0] == "[0] hello 0"
    assert "[1]" not in one
    site.until(lambda: once == ["[1] hello 1\n"])  # while the job is silent
    go.touch()
    out, err = following.communicate(timeout=PATIENCE_S)
    assert following.returncode == 0, err
    reader.join(PATIENCE_S)
    assert gathered.wait() == 0 and once == ["[1] hello 1\n", "[1] bye 1\n"]
    assert {"[0] hello 0", "[1] hello 1", "[0] bye 0", "[1] bye 1"} == set(out.splitlines())


def test_code_is_shipped_from_where_the_job_file_says_and_updated(site: Site) -> None:
    (site.folder / "src").mkdir()
    (site.folder / "src" / "hello.sh").write_text("echo shipped; sleep 600")
    job = {"name": "gpt", "image": "img:1", "code": "src",
           "command": ["sh", "hello.sh"]}  # fmt: skip
    site.file.write_text(json.dumps(job))
    run = site.holdfast("submit", str(site.file))
    assert run.returncode == 0, run.stderr
    site.until(lambda: site.printed("shipped"))
    site.until(lambda: site.holdfast("logs", "gpt").stdout == "[0] shipped\n")
    for wrong, slug in (
        (("--rollback",), "update-first"),
        (("--set=x",), "usage"),
        (("--image=img:2", "--set=x=1"), "usage"),
        (("--image=img 2",), "job-invalid"),
        (("--image=img:2",), "update-refused"),  # it has one pod, and nothing outlives that
    ):
        refused = site.holdfast("update", "gpt", *wrong)
        assert (refused.returncode, f"error[{slug}]" in refused.stderr) == (2, True), refused
    (site.folder / "src" / "hello.sh").write_text("echo $1 $WORD; sleep 600")
    words = ("--code", str(site.folder / "src"), "--set", "lr=2", "--set", "env.WORD=again")
    update = site.answer("update", "gpt", *words)["update"]
    assert (update["version"], update["stage"]) == (3, "used")
    site.until(lambda: site.printed("--lr again"))
    assert site.holdfast("update", "gpt", "--rollback").returncode == 0
    site.until(lambda: site.answer("status", "gpt")["version"] == 1)


def test_ctrl_c_stops_the_job_that_is_followed(site: Site) -> None:
    site.script("sleep 600")
    run = site.start("run", str(site.file))
    _becomes(site, "running")
    run.send_signal(signal.SIGINT)
    _out, err = run.communicate(timeout=PATIENCE_S)
    assert run.returncode == 130, err
    assert "asking gpt to stop" in err
    assert site.answer("status", "gpt")["outcome"] == "stopped"


def _becomes(site: Site, phase: str) -> None:
    """Wait until the job is in this phase: the record says it, and then the command line, which
    takes a tenth of a core's second for each look."""
    site.until(lambda: f'"phase":"{phase}"' in str(site.file_of("gpt-record")))
    assert site.answer("status", "gpt")["phase"] == phase


def test_watching_survives_a_server_that_is_away_for_a_while(site: Site) -> None:
    site.script(f"while [ ! -e {site.folder}/end ]; do sleep 0.1; done")
    site.holdfast("submit", str(site.file))
    _becomes(site, "running")
    watching = site.start("watch", "gpt")
    assert watching.stdout is not None and watching.stdout.readline(), "it has begun to watch"
    site.it.do(lambda it: it.faults.add(Fault("get", "configmaps", 503, times=8)))
    (site.folder / "end").touch()
    out, err = watching.communicate(timeout=PATIENCE_S)
    assert watching.returncode == 0, err
    assert "gpt: succeeded" in out


def test_a_scheduled_job_is_submitted_by_its_pod_which_stays_until_it_has_ended(
    site: Site,
) -> None:
    site.script("sleep 1", kubernetes={"engine": "cronjob"}, schedule={"cron": "0 3 * * *"})
    assert site.holdfast("submit", str(site.file)).returncode == 0
    for night in ("gpt-1", "gpt-2"):
        site.it.do(partial(begin, night=night))
        site.until(partial(site.it.do, partial(complete, night=night)))
        assert site.answer("status", "gpt")["outcome"] == "succeeded"


@long
def test_stopping_the_pod_of_a_scheduled_job_stops_the_job(site: Site) -> None:
    site.script("sleep 600", kubernetes={"engine": "cronjob"}, schedule={"cron": "0 3 * * *"})
    site.holdfast("submit", str(site.file))
    site.it.do(partial(begin, night="gpt-1"))
    _becomes(site, "running")
    site.it.do(lambda it: it.store.delete(JOBS, "default", "gpt-1", policy="Foreground"))
    _becomes(site, "stopped")


def begin(it: FakeCluster, night: str) -> None:
    """What the controller of CronJobs does when it is time."""
    cron = it.store.get(CRON_JOBS, "default", "gpt")
    made = copy.deepcopy(cron["spec"]["jobTemplate"])
    made["metadata"] = {**made.get("metadata", {}), "name": night}
    admission.job(made)
    admission.mark_job(it.store.create(JOBS, "default", made))


def complete(it: FakeCluster, night: str) -> bool:
    """Whether the submission of that night has ended well."""
    body = it.store.get(JOBS, "default", night)
    conditions = body.get("status", {}).get("conditions", [])
    states = {c["type"]: c["status"] for c in conditions}
    assert states.get("Failed") != "True", it.story()
    return states.get("Complete") == "True"


# ── nothing runs ──────────────────────────────────────────────────────────────────────────────


def test_a_dry_run_prints_manifests_that_render_prints_but_for_pods(barren: Site) -> None:
    made = barren.answer("submit", str(barren.file), "--dry-run", "client", "-n", "default")
    kinds = [body["kind"] for body in made]
    assert kinds[-1] == "Deployment" and "Pod" not in kinds
    assert barren.answer("list") == []


def test_a_dry_run_on_the_server_shows_what_would_change(barren: Site) -> None:
    new = barren.answer("submit", str(barren.file), "--dry-run", "server")
    assert {one["change"] for one in new} == {"new"}
    assert barren.answer("list") == []
    barren.holdfast("submit", str(barren.file))
    barren.script("exit 0", nodes=3)
    told = {f"{one['kind']} {one['name']}": one for one in
            barren.answer("submit", str(barren.file), "--dry-run", "server")}  # fmt: skip
    assert told["Role gpt-controller"]["change"] == "same"
    changed = told["ConfigMap gpt-job"]
    assert changed["change"] == "changed"
    assert "-      count: 2\n+      count: 3\n" in changed["diff"]


def test_status_says_what_the_job_waits_for_and_the_next_command(barren: Site) -> None:
    barren.holdfast("submit", str(barren.file))
    barren.until(lambda: "image" in barren.answer("status")["waiting_for"])
    run = barren.holdfast("status")
    assert "controller of gpt cannot pull the image" in run.stdout
    assert "error[image-unavailable]" in run.stderr
    assert "holdfast delete gpt --force --on kubernetes" in run.stderr
    assert "error[image-unavailable]" in barren.holdfast("why").stderr


def test_a_suspended_job_is_resumed(barren: Site) -> None:
    barren.script("exit 0", lifetime={"suspend": True})
    barren.holdfast("submit", str(barren.file), "--engine", "job")
    assert barren.answer("resume")["done"] == ["Job gpt is resumed"]


def test_a_job_whose_controller_is_scaled_down_tells_how_to_start_it(barren: Site) -> None:
    barren.holdfast("submit", str(barren.file))
    barren.it.do(
        lambda it: it.store.change(
            DEPLOYMENTS, "default", "gpt-controller", lambda b: b["spec"].update(replicas=0)
        )
    )
    barren.until(lambda: barren.answer("status")["controller"] == "away")
    assert "holdfast resume gpt --on kubernetes" in barren.holdfast("status").stdout
    run = barren.holdfast("stop", "gpt")
    assert "was asked to stop" in run.stdout and "holdfast resume gpt" in run.stderr
    assert barren.answer("resume")["done"] == ["its controller is started"]


def test_cordons_are_shown_and_lifted(barren: Site) -> None:
    def cordon(it: FakeCluster) -> None:
        def edit(body: Any) -> None:
            notes = {OWNER: "default/gpt", REASON: "Xid 79", EXPIRES: "2020-01-01T00:00:00+00:00"}
            body["metadata"]["annotations"] = notes
            gone = {"key": OUT_OF_SERVICE, "effect": "NoExecute"}
            body["spec"]["taints"] = [{"key": TAINT, "effect": "NoSchedule", "value": "x"}, gone]

        it.store.change(NODES, "", "m-0", edit)

    assert barren.answer("nodes") == []
    barren.it.do(cordon)
    [told] = barren.answer("nodes")
    assert (told["machine"], told["owner"], told["reason"], told["expired"]) == (
        "m-0", "default/gpt", "Xid 79", True,
    )  # fmt: skip
    assert told["conditions"] == ["has the taint node.kubernetes.io/out-of-service"]
    assert "out-of-service" in barren.holdfast("nodes").stdout
    wrong = barren.holdfast("nodes", "--lift", "m-9")
    assert (wrong.returncode, "error[machine-not-cordoned]" in wrong.stderr) == (4, True)
    assert "expired: to be checked" in barren.holdfast("nodes").stdout
    assert barren.answer("nodes", "--lift", "m-0") == {"lifted": ["m-0"]}
    [after] = barren.answer("nodes")
    assert (after["cordoned"], after["score"], after["owner"]) == (False, 0, None)
    [once] = after["history"]
    assert (once["by"], once["why"], once["ended"]) == (
        "default/gpt", "Xid 79", "lifted by a person",
    )  # fmt: skip
    told = barren.holdfast("nodes").stdout
    assert "by default/gpt: Xid 79; lifted by a person" in told
    again = barren.holdfast("nodes", "--lift", "m-0")
    assert "error[machine-not-cordoned]" in again.stderr


def test_doctor_looks_into_an_image_that_can_be_pulled(site: Site) -> None:
    job = {"name": "gpt", "image": {"name": "img:1", "python": sys.executable}, "script": "x.py"}
    site.file.write_text(json.dumps(job))
    checks = site.answer("doctor", str(site.file), "--image-check")["checks"]
    [told] = [check for check in checks if check["name"] == "image"]
    assert told["ok"] is True
    assert told["found"].startswith("python 3.")
    assert "torch 2." in told["found"]
    assert site.it.do(lambda it: it.pods()) == []


def test_doctor_says_that_all_is_well_or_what_is_not(barren: Site) -> None:
    found = barren.answer("doctor", str(barren.file))
    assert found["ok"] is True
    barren.script("exit 0", resources={"gpus": 16})
    run = barren.holdfast("doctor", str(barren.file))
    assert run.returncode == 3
    assert "bad  machines: capacity for 0 of 2 nodes" in run.stdout
    assert "insufficient nvidia.com/gpu" in run.stdout


# ── wrong input ───────────────────────────────────────────────────────────────────────────────


WRONG: list[tuple[str, int, tuple[str, ...], dict[str, str]]] = [
    ("usage", 2, ("submit", "FILE", "--engine", "jobsets"), {}),
    ("usage", 2, ("submit", "FILE", "--on", "local"), {}),
    ("usage", 2, ("run", "train.py"), {}),
    ("usage", 2, ("status", "gpt", "-n", "x"), {"HOLDFAST_ON": "local"}),
    ("usage", 2, ("run", "FILE", "--engine", "job"), {"HOLDFAST_ON": "local"}),
    ("usage", 2, ("logs", "gpt", "--attempt", "1"), {}),
    ("context-unknown", 2, ("status", "gpt", "--context", "prod"), {}),
    ("kubeconfig-unusable", 2, ("list",), {"KUBECONFIG": "/no/such/file"}),
    ("namespace-missing", 2, ("submit", "FILE", "-n", "nowhere"), {}),
    ("job-not-found", 4, ("status", "rum"), {}),
    ("job-not-found", 4, ("watch",), {}),
    ("job-not-found", 4, ("delete", "rum"), {}),
    ("not-managed", 2, ("submit", "FILE", "--mode", "plain", "--wait"), {}),
    ("engine-unsupported", 2, ("submit", "SPARES", "--mode", "plain"), {}),
    ("job-file-unreadable", 2, ("submit", "none.yaml"), {}),
]


@pytest.mark.parametrize(("slug", "code", "words", "variables"), WRONG)
def test_wrong_input_is_one_error_with_a_next_command(
    barren: Site, slug: str, code: int, words: tuple[str, ...], variables: dict[str, str]
) -> None:
    spares = barren.folder / "spares.yaml"
    spares.write_text(barren.file.read_text().replace('"nodes": 2', '"nodes": {"spares": 1}'))
    known = {"FILE": str(barren.file), "SPARES": str(spares)}
    run = barren.holdfast(*(known.get(word, word) for word in words), **variables)
    assert (run.returncode, run.stdout) == (code, "")
    assert run.stderr.startswith(f"error[{slug}]: ")
    assert "\n  help: " in run.stderr
    assert "Traceback" not in run.stderr


def test_a_plain_job_has_logs_and_can_be_deleted_but_has_no_record(barren: Site) -> None:
    run = barren.holdfast("submit", str(barren.file), "--mode", "plain", "--engine", "pods")
    assert run.returncode == 0, run.stderr
    assert "a lost pod is not replaced" in run.stderr
    status = barren.holdfast("status", "gpt")
    assert (status.returncode, "error[not-managed]" in status.stderr) == (2, True)
    assert barren.answer("list")[0]["managed"] is False
    assert "objects deleted" in barren.holdfast("delete", "gpt", "--force").stdout


def test_without_a_client_the_extra_is_named(tmp_path: Path, home: Path) -> None:
    """The base package has no Kubernetes client; local verbs do not need one."""
    (tmp_path / "httpx2.py").write_text("raise ModuleNotFoundError(name='httpx2')")
    path = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", os.getcwd())))
    env = {**os.environ, "HOLDFAST_HOME": str(home), "PYTHONPATH": path}
    words = [sys.executable, "-m", "holdfast.cli", "list"]
    assert subprocess.run(words, env=env, capture_output=True).returncode == 0
    run = subprocess.run([*words, "--on", "kubernetes"], env=env, capture_output=True, text=True)
    assert run.returncode == 3
    assert run.stderr.startswith("error[kubernetes-missing]: ")
    assert "pip install 'holdfast[kubernetes]'" in run.stderr

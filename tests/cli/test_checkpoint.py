"""`holdfast checkpoint`, on a real folder: what is shown, what is found, how it ends."""

import io
import json
import os
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast.checkpoint import manifest as files
from holdfast.checkpoint.key import Key
from holdfast.checkpoint.open_store import open_store
from holdfast.checkpoint.save import commit, save_rank
from holdfast.checkpoint.tiers import Tier
from holdfast.cli import main
from holdfast.drivers import records
from holdfast.spec import job_from_dict
from tests.checkpoint.making import NOW, Held, Snapshot, began, committed_step


class Ran(NamedTuple):
    """What a command has printed, and its status."""

    returncode: int
    stdout: str
    stderr: str


def checkpoint(*words: str) -> Ran:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = main(["checkpoint", *words])
    return Ran(status, out.getvalue(), err.getvalue())


def answer(*words: str) -> Any:
    run = checkpoint(*words, "--json")
    return json.loads(run.stdout)


@pytest.fixture
def shelf(tmp_path: Path) -> str:
    """Steps 10 to 40 of attempt 1; attempt 2 went on from 30, so 40 is void, and saved 35."""
    place = tmp_path / "shelf"
    store = open_store(str(place))
    began(store, 1)
    for step in (10, 20, 30, 40):
        name = "golden" if step == 10 else ""
        committed_step(store, Key(1, step), name=name, weight=str(step).encode() * 100)
    began(store, 2, Key(1, 30))
    committed_step(store, Key(2, 35), weight=b"w" * 300)
    return str(place)


def test_list_tells_what_counts_and_what_is_void(shelf: str) -> None:
    (told,) = answer("list", "--at", shelf)
    assert (told["place"], told["tier"], told["damaged"]) == (shelf, None, [])
    listed = [(c["step"], c["attempt"], c["state"], c["name"]) for c in told["checkpoints"]]
    assert listed == [
        (35, 2, "committed", ""),
        (30, 1, "committed", ""),
        (20, 1, "committed", ""),
        (10, 1, "committed", "golden"),
        (40, 1, "void", ""),
    ]
    lines = checkpoint("list", "--at", shelf).stdout.splitlines()
    assert lines[0] == shelf
    assert [line.split()[0] for line in lines[1:]] == ["STEP", "35", "30", "20", "10", "40"]


def test_show_tells_every_leaf_of_the_newest_or_the_named_one(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    parts = [Snapshot(rank, 2) for rank in (0, 1)]
    for one in parts:
        shared = {"w": Held(b"x" * 2048, own=False, save=3 if one.rank == 0 else 0)}
        cells = one.take(Key(1, 7), shared=shared, private={"rng\x1b[2J": b"12"})
        save_rank(store, cells, job="gpt", tier=Tier.SHARED)
        one.close()
    commit(store, Key(1, 7), ranks=[0, 1], now=NOW)
    told = answer("show", "--at", str(tmp_path))
    assert (told["job"], told["step"], told["ranks"]) == ("gpt", 7, [0, 1])
    shapes = [(x["part"], x["name"], x["bytes"], x["pieces"]) for x in told["leaves"]]
    assert shapes == [("shared", "w", 2048, 2), ("private", "rng\x1b[2J", 4, 2)]
    text = checkpoint("show", "--at", str(tmp_path), "--step", "7").stdout
    assert text.startswith("gpt: step 7 of attempt 1 in ")
    assert "2.0 KiB" in text
    assert "\x1b" not in text


def test_a_void_checkpoint_is_found_by_its_attempt_only(shelf: str) -> None:
    assert answer("show", "--at", shelf)["step"] == 35
    assert checkpoint("show", "--at", shelf, "--step", "40").returncode == 4
    assert answer("show", "--at", shelf, "--step", "40", "--attempt", "1")["step"] == 40


def test_verify_names_what_is_damaged_and_says_what_it_skips(shelf: str) -> None:
    run = checkpoint("verify", "--at", shelf)
    assert (run.returncode, run.stdout) == (0, "intact: 4 checkpoints\n")
    assert "not verified: 1 void checkpoint" in run.stderr
    assert (
        answer("verify", "--at", shelf)["checked"],
        answer("verify", "--at", shelf)["void"],
    ) == (4, 1)
    name = files.data_file(Key(1, 20), 0)
    path = Path(shelf, name)
    data = path.read_bytes()
    at = data.index(b"2020")
    path.write_bytes(data[:at] + b"!" + data[at + 1 :])
    run = checkpoint("verify", "--at", shelf)
    assert run.returncode == 1
    where = f"bytes {at} to {at + 200}, weight of rank 0"
    assert run.stdout.startswith(f"damaged: {name}, {where}: ")
    assert "intact" not in run.stdout
    assert checkpoint("verify", "--at", shelf, "--step", "30").returncode == 0
    found = answer("verify", "--at", shelf)["damaged"]
    assert [(d["file"], d["leaf"], d["at"]) for d in found] == [(name, "weight", at)]


def test_a_damaged_manifest_is_told_by_list_and_verify(shelf: str) -> None:
    name = files.manifest_file(Key(2, 35))
    os.truncate(Path(shelf, name), 50)
    listed = checkpoint("list", "--at", shelf)
    assert listed.returncode == 0
    assert f"damaged: {name}" in listed.stdout
    assert checkpoint("verify", "--at", shelf).returncode == 1


def test_prune_says_first_and_then_does(shelf: str) -> None:
    assert checkpoint("prune", "--at", shelf).stdout == f"{shelf}: removed nothing\n"
    dry = checkpoint("prune", "--at", shelf, "--keep", "1", "--void", "--dry-run")
    why = "superseded by later attempts"
    assert dry.stdout == f"{shelf}: would remove 40 ({why})\n"
    assert len(answer("list", "--at", shelf)[0]["checkpoints"]) == 5
    (told,) = answer("prune", "--at", shelf, "--keep", "1", "--void")
    assert told["removed"] == [{"step": 40, "attempt": 1, "why": why}]
    assert len(answer("list", "--at", shelf)[0]["checkpoints"]) == 4


def test_a_copy_can_be_verified_where_it_is(shelf: str, tmp_path: Path) -> None:
    target = str(tmp_path / "archive")
    run = checkpoint("copy", "--at", shelf, "--to", target, "--step", "20", "--name", "best")
    assert run.returncode == 0, run.stderr
    (told,) = answer("list", "--at", target)
    assert [(c["step"], c["name"]) for c in told["checkpoints"]] == [(20, "best")]
    assert checkpoint("verify", "--at", target).returncode == 0
    again = checkpoint("copy", "--at", shelf, "--to", target, "--step", "20")
    assert again.returncode == 2


@pytest.mark.parametrize(
    ("words", "status", "slug"),
    [
        (("list", "--at", "ftpx://x"), 2, "storage-place"),
        (("list", "job", "--at", "EMPTY"), 2, "usage"),
        (("list", "no-such-job"), 4, "job-not-found"),
        (("show", "--at", "EMPTY"), 4, "checkpoint-not-found"),
        (("verify", "--at", "EMPTY"), 4, "checkpoint-not-found"),
        (("export", "--at", "EMPTY", "--to", "x", "--form", "zip"), 2, "usage"),
        (("nonsense",), 2, "usage"),
        ((), 2, "usage"),
    ],
)
def test_what_cannot_be_is_said_with_its_status(
    words: tuple[str, ...], status: int, slug: str, tmp_path: Path
) -> None:
    run = checkpoint(*(str(tmp_path) if word == "EMPTY" else word for word in words))
    assert run.returncode == status
    assert run.stderr.startswith(f"error[{slug}]: ")


def test_an_export_is_a_file_that_torch_reads(shelf: str, tmp_path: Path) -> None:
    words = ("--at", shelf, "--to", str(tmp_path / "out"), "--step", "20", "--form", "torch")
    run = checkpoint("export", *words)
    assert run.returncode == 0, run.stderr
    assert run.stdout == f"step 20 of attempt 1 is in {tmp_path / 'out'} as torch\n"
    (written,) = (tmp_path / "out").iterdir()
    assert b"20" * 100 in written.read_bytes()


def test_a_job_is_found_with_all_its_tiers(home: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    tiers = {"local": {"path": str(tmp_path / "nvme")}, "shared": {"path": str(tmp_path / "nfs")}}
    said = {"name": "gpt", "script": str(tmp_path / "train.py"), "checkpoints": tiers}
    job = job_from_dict(said, where="the test")
    os.close(records.create(job, home / "jobs" / "gpt", now=NOW))
    for place, step in (("nvme/gpt/node-0", 30), ("nvme/gpt/node-1", 30), ("nfs/gpt", 20)):
        committed_step(open_store(str(tmp_path / place)), Key(1, step), x=b"1")
    told = [(one["tier"], len(one["checkpoints"])) for one in answer("list", "gpt")]
    assert told == [("local", 1), ("local", 1), ("shared", 1)]
    assert answer("show")["place"] == str(tmp_path / "nvme/gpt/node-0")
    assert answer("show", "gpt", "--tier", "shared")["step"] == 20
    assert checkpoint("list", "gpt", "--tier", "archive").returncode == 2
    assert checkpoint("verify", "gpt").stdout == "intact: 3 checkpoints\n"
    pruned = checkpoint("prune", "gpt").stdout.splitlines()
    assert [line.split()[0] for line in pruned] == ["local", "local", "shared"]

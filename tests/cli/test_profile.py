"""`holdfast profile` refuses what cannot be, before anybody is asked."""

import asyncio
import gzip
import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.cli import main, profile, question
from holdfast.cli.cluster import Reach
from holdfast.cli.profile import _ask, _fetch, _Traces
from holdfast.drivers.kubernetes import fetched_traces, published_stacks, remote
from holdfast.errors import Error, ExitStatus
from holdfast.profiles import ProfileReply, ProfileRequest, RankProfile
from tests.warm import holdfast


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--ranks", "fastest"], 2, "'fastest' is neither a rank nor `slowest`"),
        (["--ranks", ""], 2, "'' is neither a rank"),
        (["--ranks", "-1"], 2, "'-1' is neither a rank"),
        (["--ranks", "9" * 5000], 2, "is neither a rank"),
        (["--ranks", ",".join(map(str, range(17)))], 2, "at most 16 ranks"),
        (["--steps", "0"], 2, "1 to 50 steps"),
        (["--steps", "51"], 2, "1 to 50 steps"),
        (["--output", "no/folder/trace.json.gz"], 3, "error[output-unwritable]"),
        (["--nsys"], 2, "error[nsys-unavailable]"),
        ([], 4, "error[job-not-found]"),
    ],
)
def test_what_cannot_be_is_refused(home: Path, words: list[str], status: int, said: str) -> None:
    assert not (home / "jobs").exists()
    done = holdfast("profile", "gpt", *words)
    assert (done.returncode, done.stdout) == (status, ""), done.stderr
    assert said in done.stderr and "help: " in done.stderr


def test_a_job_file_that_cannot_be_read_costs_no_profile_of_a_cluster(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Only names of ranks come from it, and the steps were profiled already."""
    reply = ProfileReply(ranks=(RankProfile(rank=0, trace="profiles/a/rank-0.json.gz"),))

    async def unreadable(*_: object) -> object:
        raise Error("job-invalid", "a key of a later version", why="", help="")

    async def profiled(*_: object) -> ProfileReply:
        return reply

    async def fetched(*_: object) -> dict[int, str]:
        return {}

    def asked(asks: Any, *_: object) -> object:
        return asyncio.run(asks.there(None, "gpt"))

    monkeypatch.setattr(remote, "look", unreadable)
    monkeypatch.setattr(published_stacks, "ask_for_profile", profiled)
    monkeypatch.setattr(fetched_traces, "fetch", fetched)
    monkeypatch.setattr(question, "ask", asked)
    traces = _Traces(tmp_path, None)
    told: object = _ask(ProfileRequest(id="a"), "gpt", Reach(None, None), traces)
    assert told is reply and (traces.job, traces.stayed) == (None, {})


@pytest.mark.parametrize("trace", [b"{", b'{"traceEvents":[],"x":' + b"[" * 100_000])
def test_a_trace_that_cannot_be_merged_hides_no_figures(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    trace: bytes,
) -> None:
    monkeypatch.chdir(tmp_path)
    one = RankProfile(rank=0, node="n", steps=2, device="cpu", trace="profiles/a/rank-0.json.gz")

    def told(_wish: object, _name: object, _reach: object, traces: _Traces) -> object:
        (traces.folder / "profiles/a").mkdir(parents=True)
        (traces.folder / one.trace).write_bytes(gzip.compress(trace))
        return question.Answered("gpt", " --on kubernetes", ProfileReply(ranks=(one,)))

    monkeypatch.setattr(profile, "_ask", told)
    assert main(["profile", "gpt", "--on", "kubernetes"]) == ExitStatus.PLATFORM
    shown = capsys.readouterr()
    assert "try first: " in shown.out and "error[output-unwritable]" in shown.err
    assert main(["profile", "gpt", "--on", "kubernetes", "--json"]) == ExitStatus.PLATFORM
    assert json.loads(capsys.readouterr().out)["error"]["slug"] == "output-unwritable"
    assert list(tmp_path.iterdir()) == []


def test_where_the_current_folder_is_read_only_a_trace_goes_below_the_home(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert profile._writable() == Path()
    monkeypatch.setattr(os, "access", lambda path, _: path != ".")  # root may write anywhere
    assert profile._writable() == home / "profiles"
    assert (home / "profiles").is_dir()


def test_nsys_is_refused_where_it_is_installed_too(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = home / "nsys"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(home))
    refused = holdfast("profile", "gpt", "--nsys")
    assert refused.returncode == 2 and f"{program} is installed, but on Linux" in refused.stderr


def test_the_command_that_fetches_a_trace_names_the_cluster_and_can_be_pasted() -> None:
    one = RankProfile(rank=4, node="gpt-1-x2", trace="profiles/a1/rank-4.json.gz")
    cat = "-- sh -c 'cat $HOLDFAST_HOME/jobs/gpt/profiles/a1/rank-4.json.gz' > rank-4.json.gz"
    assert _fetch("gpt", one, Reach(None, None)) == f"kubectl exec gpt-1-x2 {cat}"
    named = _fetch("gpt", one, Reach("it's", "team"))
    assert named == f"kubectl --context 'it'\"'\"'s' --namespace team exec gpt-1-x2 {cat}"


@pytest.mark.parametrize(
    "told",
    [
        {"trace": "../../../home/me/.ssh/id"},
        {"trace": "/etc/passwd"},
        {"trace": "profiles/a1/rank-0.json.gz'; rm -rf ~; '"},
        {"trace": "profiles/../rank-0.json.gz"},
        {"trace": "profiles/a1/rank-0.json.gz\n"},
        {"node": "n; rm -rf ~"},
        {"node": "--kubeconfig=x"},
        {"node": "n" * 254},
    ],
)
def test_a_node_that_tells_of_another_file_or_command_is_not_believed(told: dict[str, str]) -> None:
    good = {"rank": 0, "node": "n-0.a_b", "trace": "profiles/a1/rank-0.json.gz"}
    assert msgspec.convert(good, RankProfile).node == "n-0.a_b"
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({**good, **told}, RankProfile)

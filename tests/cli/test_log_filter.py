"""Choosing lines among those of many ranks."""

import json
import os
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.cli.app import app
from holdfast.cli.log_filter import Level, Levels, LineChoice, compiled, told, unique
from holdfast.cli.logs import instant
from holdfast.cli.tail import Line
from holdfast.errors import Error


def lines(*texts: str, rank: int = 0) -> list[Line]:
    return [Line(1, rank, text) for text in texts]


def levels(*texts: str) -> list[str]:
    of = Levels()
    return [str(of.of(line)) for line in lines(*texts)]


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("2026-11-23 12:34:50,333 WARNING disk is slow", "warning"),
        ("INFO:root:rank 1 is up", "info"),
        ("[ERROR] cannot open", "error"),
        ("E1123 12:34:50.000000 140 ProcessGroupNCCL.cpp:552] watchdog", "error"),
        ("[rank3]:W1123 12:34:50.000 torch/distributed/x.py:1] slow", "warning"),
        ("/x/y.py:12: UserWarning: lr_scheduler.step() before optimizer.step()", "warning"),
        ("CRITICAL: out of memory", "error"),
        ("DEBUG shapes (4, 8)", "debug"),
        ("step 3 loss 0.4", "info"),
        ("terror and INFOrmation", "info"),
        ("x" * 200 + " ERROR far to the right", "info"),
        ("", "info"),
    ],
)
def test_a_line_has_the_level_that_its_logger_wrote(text: str, level: str) -> None:
    assert levels(text) == [level]


def test_a_traceback_is_an_error_down_to_its_exception() -> None:
    text = ["Traceback (most recent call last):", '  File "a.py", line 1, in <module>', "    1/0",
            "ZeroDivisionError: division by zero", "going on"]  # fmt: skip
    assert levels(*text) == ["error"] * 4 + ["info"]


def test_indented_lines_belong_to_the_line_before_of_the_same_rank() -> None:
    of = Levels()
    assert of.of(Line(1, 0, "ERROR of rank 0")) is Level.ERROR
    assert of.of(Line(1, 1, "  of rank 1")) is Level.INFO
    assert of.of(Line(1, 0, "  more of it")) is Level.ERROR


def test_pattern_and_level_are_both_asked_for() -> None:
    wanted = LineChoice(compiled("disk|net"), Level.WARNING)
    said = lines("INFO disk fine", "WARNING disk slow", "ERROR cpu hot", "ERROR net down")
    chosen = [line.text for line in wanted.chosen(Levels(), said)]
    assert chosen == ["WARNING disk slow", "ERROR net down"]


def test_what_many_ranks_wrote_is_one_line_with_a_count() -> None:
    said = [
        Line(1, rank, f"2026-11-23 12:34:{rank:02},333 [rank{rank}]: NCCL error at 0x7f{rank:02x}")
        for rank in (0, 1, 2, 5)
    ]
    said += lines("step 10 loss 0.5", rank=0) + lines("step 10 loss 0.6", rank=1)
    assert [told(one) for one in unique(said)] == [
        f"[0-2, 5] {said[0].text}  (x 4)",
        "[0] step 10 loss 0.5",
        "[1] step 10 loss 0.6",
    ]


def test_lines_of_pods_without_ranks_are_told_by_their_pods() -> None:
    said = [Line(None, None, "up", pod) for pod in ("a", "b", "a")]
    assert [told(one) for one in unique(said)] == ["[a, b] up  (x 3)"]


def test_no_line_is_lost_when_each_is_told_once() -> None:
    some = random.Random(3)
    said = [
        Line(1, some.randrange(9), f"{some.choice('abc')} {some.randrange(9)}") for _ in [0] * 500
    ]
    found = unique(said)
    assert sum(one.times for one in found) == len(said)
    assert {one.line.text for one in found} == {line.text for line in said}


def test_an_instant_is_a_duration_ago_or_a_time() -> None:
    assert instant("10m", 1000.0) == 400.0
    assert instant("1.5h", 6000.0) == 600.0
    assert instant("2026-11-23T12:00:00+00:00", 0.0) == 1795435200.0
    with pytest.raises(Error) as refused:
        instant("yesterday", 0.0)
    assert refused.value.slug == "usage"


def test_a_pattern_that_is_none_is_refused_by_name() -> None:
    with pytest.raises(Error) as refused:
        compiled("(")
    assert "'('" in refused.value.what


Attempts = Callable[[dict[int, str]], None]


@pytest.fixture
def attempts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Attempts:
    """Makes a job `gpt` whose rank 0 wrote this in its attempts."""
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    folder = tmp_path / "jobs" / "gpt"

    def make(said: dict[int, str]) -> None:
        for attempt, text in said.items():
            log = folder / "logs" / f"attempt-{attempt}" / "rank-0.log"
            log.parent.mkdir(parents=True)
            log.write_text(text)
        (folder / "job.json").write_text('{"name": "gpt", "script": "train.py"}')

    return make


def test_what_is_looked_for_is_found_in_all_attempts_in_order(
    attempts: Attempts, capsys: pytest.CaptureFixture[str]
) -> None:
    much = "x" * 200_000
    attempts({n: f"ERROR disk {n}\nstep {n}\n{much}\n" for n in (1, 2)} | {10: "step 10\n"})

    def shown(*words: str) -> list[str]:
        with pytest.raises(SystemExit) as ended:
            app(["logs", "gpt", *words])
        assert not ended.value.code
        return [line for line in capsys.readouterr().out.splitlines() if "xx" not in line]

    assert shown() == ["[0] step 10"], "without a question, how it goes now"
    assert shown("--grep", "disk") == ["[0] ERROR disk 1", "[0] ERROR disk 2"]
    assert shown("--level", "error", "--unique") == ["[0] ERROR disk 1", "[0] ERROR disk 2"]
    assert shown("--grep", "step") == ["[0] step 1", "[0] step 2", "[0] step 10"]
    assert shown("--since", "1h") == shown("--grep", "step|disk")
    assert shown("--grep", "disk", "--attempt", "10") == []
    objects = [json.loads(line) for line in shown("--grep", "disk", "--json")]
    assert [one["attempt"] for one in objects] == [1, 2]


def test_the_work_of_looking_grows_with_the_logs_and_no_faster(
    attempts: Attempts, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    attempts(dict.fromkeys(range(1, 41), "fine\n"))
    looks: list[Path] = []

    def looked(path: Path) -> str:
        looks.append(path)
        return os.fspath(path)

    monkeypatch.setattr(Path, "as_posix", looked)
    with pytest.raises(SystemExit):
        app(["logs", "gpt", "--grep", "fine"])
    assert capsys.readouterr().out.count("fine") == 40
    assert 40 <= len(looks) < 4 * 40, "each log is looked for a few times, however many there are"


def test_lines_that_are_told_once_are_not_held(
    attempts: Attempts, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = 30_000
    attempts({1: "the same again\n" * lines})
    tracemalloc.start()
    try:
        with pytest.raises(SystemExit):
            app(["logs", "gpt", "--unique"])
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert f"(x {lines})" in capsys.readouterr().out
    assert most < 100 * lines, "a line that is held takes more"


def test_it_is_said_which_attempt_a_line_is_from(
    attempts: Attempts, capsys: pytest.CaptureFixture[str]
) -> None:
    attempts({1: "Traceback (most recent call last):\n", 2: "fine\n", 3: "fine\n"})
    for words, said in {
        ("--grep", "fine"): "attempt 2:\nattempt 3:\n",
        ("--level", "error"): "attempt 1:\n",  # a traceback ends with its attempt
        ("--grep", "fine", "--attempt", "2"): "",
        (): "",
    }.items():
        with pytest.raises(SystemExit):
            app(["logs", "gpt", *words])
        assert capsys.readouterr().err == said

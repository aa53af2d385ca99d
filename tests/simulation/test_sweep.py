"""Sweeps, intervals and what the command line makes of them."""

import json
import math
from pathlib import Path

import pytest

from holdfast.cli import main
from holdfast.errors import Error
from holdfast.simulation import plots, requeue, sweep
from holdfast.simulation.result import Result, interval, student_t, summarize
from holdfast.simulation.sweep import Task, answer, axis, plan_of, question, run_task

QUICK = ("nodes=32", "days=5", "failures.rate_per_1000_node_days=100", "seeds=2")
QUICK_WORDS = [word for setting in QUICK for word in ("--set", setting)]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("spares=0..3", (0, 1, 2, 3)),
        ("checkpoint.interval_s=10,30.5", (10, 30.5)),
        ("failures.mix=rsc1, rsc2", ("rsc1", "rsc2")),
        ("spares=4", (4,)),
    ],
)
def test_an_axis_is_a_span_or_a_list(text: str, values: tuple[object, ...]) -> None:
    assert axis(text).values == values


@pytest.mark.parametrize("text", ["spares=", "=3", "spares=1,,2", "spares=a..b", "spares"])
def test_an_axis_without_values_is_refused(text: str) -> None:
    with pytest.raises(Error, match="is not a sweep"):
        axis(text)


def test_a_sweep_has_every_combination_and_the_same_worlds_in_each() -> None:
    asked = question("rsc1-8k", QUICK)
    seen: list[tuple[int, int]] = []
    axes = [axis("spares=0,4"), axis("policy.replace_after=1,2")]
    points = sweep.sweep(asked, axes, done=lambda *counts: seen.append(counts))
    assert [p.values for p in points] == [(0, 1), (0, 2), (4, 1), (4, 2)]
    assert seen == [(n, 8) for n in range(1, 9)]
    assert points[0].summary.ettr.mean < points[2].summary.ettr.mean
    alone = answer(asked.with_settings("spares=4", "policy.replace_after=2"))[1]
    assert points[3].summary == alone


def test_an_error_in_one_point_is_told_before_anything_runs() -> None:
    asked = question("rsc1-8k", QUICK)
    with pytest.raises(Error, match="scenario-invalid"):
        sweep.sweep(asked, [axis("spares=1,-1")], done=lambda *_: pytest.fail("it ran"))


def test_the_interval_is_that_of_student() -> None:
    for freedom, quantile in ((1, 12.706), (2, 4.303), (3, 3.182), (9, 2.262), (30, 2.042)):
        assert student_t(freedom) == pytest.approx(quantile, rel=5e-3)
    found = interval([1.0, 2.0, 3.0])
    assert found.mean == 2.0
    assert found.half == pytest.approx(4.303 / math.sqrt(3), rel=1e-3)
    assert math.isinf(interval([1.0]).half)


def test_means_count_worlds_that_lack_a_cause_or_a_bucket() -> None:
    results = [
        Result(seed=1, ettr=1.0, buckets={"productive": 4.0}, causes={}),
        Result(seed=2, ettr=0.5, buckets={"productive": 2.0, "detect": 2.0}, causes={}),
    ]
    assert summarize(results, spares=1).buckets == {"productive": 3.0, "detect": 1.0}


def test_the_stock_way_meets_the_same_faults_and_its_time_adds_up() -> None:
    asked = question("llama3-16k", ["days=20"])
    plan = plan_of(asked)
    ours, theirs = run_task(Task(asked, 5)), requeue.run(plan, 5)
    assert sum(theirs.buckets.values()) == pytest.approx(plan.horizon_s)
    assert all(seconds >= 0 for seconds in theirs.buckets.values())
    assert theirs.ettr < ours.ettr
    hang = "network"
    mean = {r.seed: r.causes[hang].lost_s / r.causes[hang].incidents for r in (theirs,)}
    assert mean[5] > 1800


def test_json_has_the_inputs_and_says_that_it_is_a_model(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["simulate", "rsc1-8k", *QUICK_WORDS, "--compare", "torchrun", "--json"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["model_result"] is True
    assert found["inputs"]["scenario"]["nodes"] == 32
    assert found["inputs"]["mix"]["source"]
    assert found["torchrun"]["ettr"]["mean"] < found["summary"]["ettr"]["mean"] < 1
    assert len(found["results"]) == 2


def test_the_text_says_what_was_assumed_and_where_the_time_went(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["simulate", "rsc1-8k", *QUICK_WORDS]) == 0
    said = capsys.readouterr().out
    for words in (
        "model result",
        "95 % confidence",
        "productive",
        "faulty-gpu",
        "Spares",
        "INPUTS",
    ):
        assert words in said


def test_a_sweep_is_a_table_and_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "spares.svg"
    words = ["--sweep", "spares=0..2", "--sweep", "failures.mix=rsc1,rsc2", "--plot", str(path)]
    assert main(["simulate", "rsc1-8k", *QUICK_WORDS, *words]) == 0
    assert capsys.readouterr().out.count("rsc2") == 3
    assert "model result" in path.read_text() or path.stat().st_size > 5000


def test_the_same_answer_gives_the_same_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    _, summary, _ = answer(question("rsc1-8k", QUICK))
    for kind in ("png", "svg"):
        for name in ("one", "two"):
            plots.draw_ledgers(tmp_path / f"{name}.{kind}", "title", {"holdfast": summary})
        one, two = (tmp_path / f"{name}.{kind}" for name in ("one", "two"))
        assert one.read_bytes() == two.read_bytes()


def test_without_matplotlib_one_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    assert main(["simulate", "rsc1-8k", "--plot", "out.png"]) == 2
    said = capsys.readouterr().err
    assert "matplotlib is not installed" in said
    assert "pip install 'holdfast[plot]'" in said

"""`holdfast plan` in this process: text, JSON, plot, job file, bad input."""

import json
from pathlib import Path

import pytest

from holdfast.cli import main
from holdfast.spec import job_from_yaml
from tests.planning.test_model import LLAMA_8B

NUMBERS = "layers=32,hidden=4096,heads=32,kv_heads=8,ffn=14336,vocab=128256,sequence=8192"


def test_a_plan_says_what_a_training_takes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(LLAMA_8B))
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text("price_per_gpu_hour: 2\nfailures_per_1000_node_days: 3.79\n")
    words = ["--gpus", "64", "--gpu", "a100-80gb", "--tokens", "2e12", "--cluster", str(cluster)]
    assert main(["plan", str(config), *words]) == 0
    text = capsys.readouterr().out
    assert text.startswith("8.0 B parameters on 64 × a100-80gb (8 nodes), 512 × 8,192 tokens")
    for word in ("optimizer", "compute", "GPU-hours", "cost ", "checkpoint, archive", "1 spare"):
        assert word in text
    assert "(model result, closed formula)" in text
    assert main(["plan", NUMBERS, *words, "--json", "--rows", "3"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["params"], answer["nodes"], len(answer["rows"])) == (8030261248, 8, 3)
    row = answer["rows"][0]
    assert sum(row["step_s"].values()) == pytest.approx(row["step_total_s"])
    assert row["cost"] == pytest.approx(2 * row["gpu_hours"])
    assert answer["model_result"] is True


def test_a_job_file_has_what_was_planned(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    assert main(["plan", NUMBERS, "--gpus", "64", "--write", str(file)]) == 0
    job = job_from_yaml(file)
    assert (job.nodes.count, job.nodes.spares, job.workers_per_node) == (8, 1, 8)
    assert job.recovery.mttf_h == pytest.approx(1000 * 24 / 6.5 / 8, rel=0.01)
    assert main(["plan", NUMBERS, "--gpus", "64", "--write", str(file)]) == 2
    assert job_from_yaml(file) == job


@pytest.mark.parametrize("ep", [4, 8])
def test_a_job_file_divides_experts_as_planned(tmp_path: Path, ep: int) -> None:
    experts, file = f"{NUMBERS},experts=8,active_experts=2", tmp_path / "job.yaml"
    words = ["--gpus", "64", "--parallel", f"ep={ep}"]
    assert main(["plan", experts, *words, "--write", str(file)]) == 0
    job = job_from_yaml(file)
    assert job.parallel is not None and job.parallel.ep == ep
    ranks = job.parallel.layout.resolve(64)
    assert ranks.dp_shard * ranks.cp % ep == 0


def test_the_simulator_can_be_asked_for_the_ettr(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", NUMBERS, "--gpus", "64", "--simulate", "1", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    formula = answer["plan"]["rows"][0]["ettr"]
    assert answer["simulated"]["ettr"] == pytest.approx(formula, abs=0.02)


def test_a_plot_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    file = tmp_path / "plan.svg"
    assert main(["plan", NUMBERS, "--gpus", "64", "--plot", str(file)]) == 0
    assert "model result" in file.read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere.json", "--gpus", "8"], "cannot read nowhere.json"),
        ([NUMBERS.replace("=32", "=1.5"), "--gpus", "8"], "layers is '1.5'"),
        (["layers", "--gpus", "8"], "cannot read layers"),
        (["layers=1,layers=2", "--gpus", "8"], "layers is given twice"),
        ([NUMBERS, "--gpus", "8", "--gpu", "h1000"], "GPU 'h1000' is not known"),
        ([NUMBERS, "--gpus", "8", "--cluster", "no.yaml"], "describes a cluster file"),
        ([NUMBERS, "--gpus", "8", "--tokens", "nan"], "--tokens nan is impossible"),
        ([NUMBERS, "--gpus", "8", "--parallel", "tp=x"], "--parallel: cannot read 'tp=x'"),
        ([NUMBERS, "--gpus", "8", "--parallel", "tp=3"], "heads 32 are not divisible by tp 3"),
    ],
)
def test_bad_input_is_named(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "[1]", "{", "\x00", '{"model_type": "llama"}'])
def test_a_file_that_is_no_configuration_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(text)
    assert main(["plan", str(file), "--gpus", "8"]) == 2

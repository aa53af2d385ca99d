"""`holdfast render` and `validate --engine`, as processes: what they print, refuse and cost."""

import cProfile
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from holdfast.cli import main
from tests.warm import holdfast

JOB = """
name: gpt
script: src/train.py
workdir: /app
nodes: {count: 2, spares: 1}
image: registry.example/train:1
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "job.yaml"
    found.write_text(JOB)
    return found


def test_it_prints_a_stream_that_says_where_it_comes_from(file: Path) -> None:
    run = holdfast("render", str(file), "--engine", "job", "--namespace", "team")
    assert (run.returncode, run.stderr) == (0, "")
    bodies = list(yaml.safe_load_all(run.stdout))
    assert {"Job", "Service", "Role", "ConfigMap", "Deployment"} <= {b["kind"] for b in bodies}
    assert {b["metadata"]["namespace"] for b in bodies} == {"team"}
    assert "# " in run.stdout
    assert str(file.parent) not in run.stdout, "paths are those of the image"


def test_the_same_file_gives_the_same_text_in_every_process(file: Path) -> None:
    """One has a seed of its own, that of the other is drawn where it starts."""
    words = [sys.executable, "-m", "holdfast.cli", "render", str(file)]
    text = subprocess.check_output(words, env={**os.environ, "PYTHONHASHSEED": "1"})
    assert text == holdfast("render", str(file)).stdout.encode()


def test_the_engine_comes_from_the_file_unless_it_is_said(file: Path) -> None:
    file.write_text(JOB + "kubernetes: {engine: jobset}\n")
    assert "kind: JobSet" in holdfast("render", str(file)).stdout
    said = holdfast("render", str(file), "--engine", "volcano").stdout
    assert "batch.volcano.sh" in said
    configuration = next(b for b in yaml.safe_load_all(said) if b["kind"] == "ConfigMap")
    written = yaml.safe_load(configuration["data"]["job.yaml"])
    assert written["kubernetes"]["engine"] == "volcano", "agents read what was rendered"


def test_json_is_the_same_objects(file: Path) -> None:
    text = holdfast("render", str(file), "--engine", "job").stdout
    found = json.loads(holdfast("render", str(file), "--engine", "job", "--json").stdout)
    assert found == list(yaml.safe_load_all(text))


def test_mpijobs_come_in_two_versions(file: Path) -> None:
    words = ("render", str(file), "--engine", "mpijob", "--mpi-version")
    assert "kubeflow.org/v1\n" in holdfast(*words, "v1").stdout
    assert "kubeflow.org/v2beta1\n" in holdfast(*words, "v2beta1").stdout


def test_every_problem_is_told_at_once_and_nothing_is_rendered(file: Path) -> None:
    file.write_text(JOB + "env: {DB_PASSWORD: correct horse}\n")
    run = holdfast("render", str(file), "--engine", "job", "--mode", "plain")
    assert (run.returncode, run.stdout) == (2, "")
    assert "error[engine-unsupported]: nodes.spares" in run.stderr
    assert "error[plaintext-secret]: env.DB_PASSWORD" in run.stderr
    assert run.stderr.count("\n  help: ") == 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--engine", "jobs"), "help: --engine job"),
        (("--kubernetes-version", "1.20"), "supported versions are 1.31 to 1.37"),
        (("--kubernetes-version", "new"), "--kubernetes-version new is not supported"),
        (("--mode", "other"), "error[usage]"),
    ],
)
def test_a_wrong_option_is_a_usage_error(file: Path, words: tuple[str, ...], told: str) -> None:
    run = holdfast("render", str(file), *words)
    assert run.returncode == 2
    assert told in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize("version", ["1.36", "v1.36", "v1.36.2", "v1.36.2-gke.100"])
def test_versions_are_taken_as_clusters_print_them(file: Path, version: str) -> None:
    assert holdfast("render", str(file), "--kubernetes-version", version).returncode == 0


def test_validate_for_an_engine_judges_the_manifests_and_no_file_of_this_machine(
    file: Path,
) -> None:
    run = holdfast("validate", str(file), "--engine", "job")
    assert run.returncode == 0, run.stderr
    assert "is valid on job, managed: " in run.stdout
    found = json.loads(holdfast("validate", str(file), "--engine", "job", "--json").stdout)
    assert found["valid"] is True
    assert not [f for f in found["findings"] if f["level"] == "error"]
    assert holdfast("validate", str(file), "--engine", "tfjob", "--mode", "plain").returncode == 2


def test_validate_says_what_becomes_of_the_pods_when_an_elastic_job_shrinks(file: Path) -> None:
    def told(engine: str) -> list[str]:
        run = holdfast("validate", str(file), "--engine", engine)
        assert run.returncode == 0, run.stderr
        words = run.stdout.splitlines()[1:]
        found = holdfast("validate", str(file), "--engine", engine, "--json").stdout
        assert json.loads(found)["notes"] == words, "programs are told the same"
        return words

    assert told("job") == [], "it is not elastic"
    file.write_text(f"{JOB}elasticity: {{min_nodes: 1}}\n")
    for engine, what in (("job", "is resized"), ("volcano", "is not resized")):
        (note,) = told(engine)
        assert note.startswith(f"elasticity: engine {engine} {what}")


def test_what_many_pods_share_is_told_once(file: Path) -> None:
    text = file.read_text().replace("{count: 2, spares: 1}", "4")
    overlay = "{spec: {terminationGracePeriodSeconds: 5}}"
    file.write_text(f"{text}resources: {{gpus: 8}}\noverlay: {overlay}\n")
    run = holdfast("validate", str(file), "--engine", "pods", "--mode", "plain")
    assert run.returncode == 0, run.stderr
    assert run.stderr.count("warning[grace-too-short]") == 1
    assert f"{file}: Pod/gpt-0 (and 3 more) spec.terminationGracePeriodSeconds: is 5" in run.stderr
    found = holdfast("validate", str(file), "--engine", "pods", "--mode", "plain", "--json").stdout
    assert len(json.loads(found)["findings"]) == 4, "programs get them all"


# ── the same file on this machine ─────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("home")
def test_what_only_a_cluster_can_run_is_refused_here(tmp_path: Path) -> None:
    keys = "framework: mpi\nmpi: {implementation: Intel}"
    (tmp_path / "train.py").write_text("")
    job = tmp_path / "job.yaml"
    job.write_text(f"name: x\nscript: train.py\n{keys}\n")
    run = holdfast("run", str(job))
    assert run.returncode == 2
    assert "error[cluster-only]" in run.stderr
    assert "holdfast render job.yaml --mode plain" in run.stderr


@pytest.mark.usefixtures("nothing_left")
def test_sections_for_a_cluster_are_left_alone_with_a_word(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(
        "name: x\ncommand: ['true']\nimage: img\nresources: {gpus: 8}\nworkers_per_node: 1\n"
        "network: {}\n"
    )
    run = holdfast("run", str(job))
    assert run.returncode == 0, run.stderr
    assert "note: ignored on this machine: image, resources\n" in run.stderr


# ── figures ───────────────────────────────────────────────────────────────────────────────────


def test_what_is_imported_is_no_kubernetes_client_and_no_torch(file: Path) -> None:
    code = (
        "import sys; from holdfast.cli import main; "
        f"main(['render', {str(file)!r}, '--engine', 'job']); "
        "print({m.split('.')[0] for m in sys.modules}, file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = run.stderr
    for heavy in ("torch", "numpy", "kubernetes", "lightkube", "asyncio", "rich", "websockets"):
        assert f"'{heavy}'" not in loaded


def test_a_job_of_256_times_the_nodes_is_not_four_times_the_work(tmp_path: Path) -> None:
    def calls(count: int) -> int:
        """Of functions: a busy machine makes no more of them."""
        job = tmp_path / f"{count}.yaml"
        job.write_text(f"name: x\nscript: t.py\nimage: i\nnodes: {count}\n")
        return _calls("render", str(job), "--engine", "pods")

    calls(2)  # what is done once
    assert calls(512) < 4 * calls(2)


def _calls(*words: str) -> int:
    profile = cProfile.Profile()
    assert profile.runcall(main, words) == 0
    return sum(entry.callcount for entry in profile.getstats())

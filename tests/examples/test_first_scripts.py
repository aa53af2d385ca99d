"""The examples that newcomers begin with run as they are, small, and go on after a kill."""

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from holdfast.drivers.kubernetes.lint import lint
from holdfast.drivers.kubernetes.manifests.render import render, requested
from holdfast.spec.load import job_as_written
from images import ImageFolder
from resnet50 import ResNet50
from tests.drivers.kubernetes.schemas import problems
from tests.end_to_end.local.jobs import RunningJob
from tests.more import MORE, long, sample
from tests.recipes.kubernetes.test_job_files import directive
from tests.tidy.source import ROOT

EXAMPLES = ROOT / "examples"
RESNET = (
    *("--epochs", "1", "--images", "4", "--size", "32", "--batch-size", "2", "--workers", "0"),
    *("--checkpoint", "OUT/resnet.pt"),
)
RUNS = {
    "ddp/job": (
        ("--epochs", "2", "--samples", "256", "--checkpoint", "OUT/ddp.pt"),
        r"epoch 2 loss \d\.\d+ accuracy 0\.\d+",
    ),
    "ddp/library": (("--steps", "8", "--print-every", "4"), r"step 8 loss \d\.\d+ accuracy 0\.\d+"),
    "fsdp/job": (
        ("--steps", "4", "--print-every", "2", "--checkpoints", "OUT/fsdp"),
        r"step 4 loss \d\.\d+",
    ),
    "fsdp/library": (("--steps", "4", "--print-every", "2"), r"step 4 loss \d\.\d+"),
    "resnet/job": (RESNET, r"epoch 1 top-1 \d+\.\d\d% top-5 \d+\.\d\d%"),
}
MANIFESTS = sorted(path for path in EXAMPLES.glob("*/*.yaml") if directive(path, "modes"))


def small(home: Path, name: str, args: tuple[str, ...], run: str = "job") -> RunningJob:
    """A job of this example with other arguments, and what it writes below the test's folder."""
    file = EXAMPLES / f"{name}.yaml"
    spec: dict[str, Any] = yaml.safe_load(file.read_text())
    out = str(home.parent / run)
    spec["args"] = [word.replace("OUT", out) for word in args]
    spec["script"] = str(file.with_name(spec["script"]))
    spec.pop("image", None)
    if not MORE and name.startswith("resnet"):  # 25 million parameters a worker
        spec["workers_per_node"] = 1
    return RunningJob(home, **{**spec, "name": run})


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize(
    "name",
    sample(["ddp/job", "fsdp/library", "resnet/job"], ["ddp/library", "fsdp/job"]),
)
def test_an_example_trains_at_a_small_size(home: Path, name: str) -> None:
    args, line = RUNS[name]
    job = small(home, name, args).start()
    job.wait_end()
    assert len(re.findall(line, job.said())) == 1, job.said()  # by one rank


@long
@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize(
    ("name", "args", "file"),
    [
        (
            "ddp/job",
            ("--epochs", "60", "--samples", "256", "--checkpoint", "OUT/ddp.pt"),
            "ddp.pt",
        ),
        (
            "fsdp/job",
            ("--steps", "60", "--save-every", "10", "--checkpoints", "OUT"),
            "step-000000060/__0_0.distcp",
        ),
    ],
)
def test_a_plain_script_that_is_killed_ends_with_the_same_parameters(
    home: Path, name: str, args: tuple[str, ...], file: str
) -> None:
    undisturbed = small(home, name, args, "undisturbed").start()
    undisturbed.wait_end()
    killed = small(home, name, args, "killed").start()
    killed.wait_until(lambda _: any((home.parent / "killed").glob("*[!d]")), "a checkpoint")
    os.kill(killed.worker(1), signal.SIGKILL)
    killed.wait_end()
    assert len(killed.incidents()) == 1
    assert parameters(home.parent / "killed" / file) == parameters(
        home.parent / "undisturbed" / file
    )


def parameters(path: Path) -> bytes:
    """What is the same if the parameters are."""
    if path.suffix != ".pt":
        return path.read_bytes()
    return b"".join(p.numpy().tobytes() for p in torch.load(path)["model"].values())


def test_the_network_is_resnet_50() -> None:
    with torch.device("meta"):
        network = ResNet50()
    assert sum(p.numel() for p in network.parameters()) == 25_557_032
    assert {"layer1.0.downsample.0.weight", "layer4.2.bn3.running_var"} <= {*network.state_dict()}
    assert network(torch.empty(2, 3, 224, 224, device="meta")).shape == (2, 1000)


def test_a_folder_of_images_is_read_by_class(tmp_path: Path) -> None:
    from PIL import Image

    for name, colour in (("b-cat", (255, 0, 0)), ("a-dog", (0, 0, 255))):
        (tmp_path / name).mkdir()
        Image.new("RGB", (40, 30), colour).save(tmp_path / name / "1.png")
    (tmp_path / "a-dog" / "notes.txt").write_text("no image")
    for training in (True, False):
        found = ImageFolder(tmp_path, 16, training=training)
        assert found.classes == ["a-dog", "b-cat"] and len(found) == 2
        pixels, label = found[1]
        assert pixels.shape == (3, 16, 16) and label == 1
        assert pixels[0].min() > 2 and pixels[2].max() < -1  # red, in deviations of ImageNet's


@pytest.mark.parametrize("engine", ["job", "jobset", "pods", "pytorchjob"])
@pytest.mark.parametrize("file", MANIFESTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_an_example_renders_strictly_and_cleanly(file: Path, engine: Any) -> None:
    job = job_as_written(file)
    for mode in directive(file, "modes"):
        bodies = render(requested(job, engine=engine, mode=mode))  # type: ignore[arg-type]
        assert [f"{b['kind']}: {p}" for b in bodies for p in problems(b)] == []
        assert [found for found in lint(bodies) if found.level == "error"] == []


def test_every_one_of_them_with_an_image_is_rendered() -> None:
    names = (
        *("ddp", "fsdp", "jax", "lightning", "llm", "mpi"),
        *("resnet", "tensorflow", "transformers", "xgboost"),
    )
    ours = [path for name in names for path in (EXAMPLES / name).glob("*.yaml")]
    assert {p for p in ours if "image" in yaml.safe_load(p.read_text())} == {*MANIFESTS}
    assert {path.parent.name for path in MANIFESTS} == {*names}

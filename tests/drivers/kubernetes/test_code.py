"""Code that is shipped: the same files give the same archive, and it runs where it is unpacked."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.drivers.kubernetes.code import LARGEST_BYTES, bundle
from holdfast.drivers.kubernetes.manifests import pod, storage
from holdfast.drivers.kubernetes.manifests.part import Part
from holdfast.drivers.kubernetes.manifests.render import render, requested
from holdfast.errors import Error
from tests.drivers.kubernetes.asking import job


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A program of two modules, with what should stay behind."""
    folder = tmp_path / "project"
    (folder / "pkg" / "__pycache__").mkdir(parents=True)
    (folder / "train.py").write_text("import pkg.part\nprint(pkg.part.WORD)\n")
    (folder / "pkg" / "part.py").write_text('WORD = "hello"\n')
    (folder / "pkg" / "__pycache__" / "part.pyc").write_bytes(b"x")
    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD").write_text("x")
    (folder / "model.pt").write_bytes(b"x" * 100)
    return folder


def test_the_same_files_give_the_same_archive(project: Path) -> None:
    first = bundle(project)
    os.utime(project / "train.py", (1, 1))
    (project / "pkg" / "__pycache__" / "part.pyc").write_bytes(b"y")
    assert bundle(project) == first
    (project / "train.py").write_text("pass\n")
    assert bundle(project) != first


def test_it_runs_where_the_init_container_unpacks_it(project: Path, tmp_path: Path) -> None:
    image = {"name": "img", "python": sys.executable}
    request = requested(job(image=image, code="."), engine="job", code=bundle(project))
    (init,) = pod.template(request, Part())["spec"]["initContainers"]
    archive, target = tmp_path / "code.tar.gz", tmp_path / "code"
    archive.write_bytes(request.code)
    subprocess.run([*init["command"][:-2], str(archive), str(target)], check=True)
    told = subprocess.run(
        [sys.executable, "train.py"], cwd=target, capture_output=True, text=True, check=True
    )
    assert told.stdout == "hello\n"
    assert sorted(p.name for p in target.iterdir()) == ["pkg", "train.py"]


def test_another_code_has_another_name(project: Path) -> None:
    def names(code: bytes) -> set[str]:
        bodies = render(requested(job(code="."), engine="job", code=code))
        maps = {b["metadata"]["name"] for b in bodies if b["kind"] == "ConfigMap"}
        jobs = [b for b in bodies if b["kind"] == "Job"]
        volumes = jobs[0]["spec"]["template"]["spec"]["volumes"]
        (used,) = [v["configMap"]["name"] for v in volumes if v["name"] == "code-bundle"]
        assert used in maps
        return maps

    assert names(bundle(project)) != names(b"")


def test_pods_work_in_the_folder_of_the_code() -> None:
    request = requested(job(code=".", workdir="sub"), engine="job", code=b"")
    (main,) = pod.template(request, Part())["spec"]["containers"]
    assert main["workingDir"] == f"{storage.CODE}/sub"


def test_what_does_not_fit_is_refused(project: Path) -> None:
    (project / "large.bin").write_bytes(os.urandom(2 * LARGEST_BYTES))
    with pytest.raises(Error, match="cannot be shipped") as caught:
        bundle(project)
    assert caught.value.slug == "code-unusable"


def test_links_that_lead_outside_are_refused(project: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    (project / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(Error, match="cannot be shipped"):
        bundle(project)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Error, match="cannot be shipped"):
        bundle(tmp_path / "no")

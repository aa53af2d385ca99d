"""Code that is shipped: the same files give the same archive, and it runs where it is unpacked."""

import base64
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import bundles as code
from holdfast.bundles import FOLDER_BYTES, bundle
from holdfast.drivers.kubernetes.manifests import pod, storage
from holdfast.drivers.kubernetes.manifests.part import Part
from holdfast.drivers.kubernetes.manifests.render import render, requested
from holdfast.drivers.kubernetes.manifests.storage import PART_BYTES
from holdfast.drivers.kubernetes.manifests.support import controller
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


def test_what_is_absurdly_large_is_refused_by_name(project: Path) -> None:
    with (project / "large.bin").open("wb") as file:
        file.truncate(FOLDER_BYTES)  # takes no room here
    with pytest.raises(Error, match="cannot be shipped") as caught:
        bundle(project)
    assert caught.value.slug == "code-unusable" and "large.bin (200.0 MB)" in caught.value.why


def test_what_is_too_large_when_compressed_is_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code, "MOST_BYTES", 1000)
    (project / "noise.bin").write_bytes(random.Random(1).randbytes(2000))
    with pytest.raises(Error, match="cannot be shipped") as caught:
        bundle(project)
    assert "compressed" in caught.value.why and "noise.bin" in caught.value.why


@pytest.mark.parametrize("size", [PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 5 * PART_BYTES])
def test_larger_code_takes_several_config_maps_that_are_joined_again(size: int) -> None:
    request = requested(job(code="."), engine="job", code=random.Random(size).randbytes(size))
    bodies = controller.code(request)
    parts = [value for body in bodies for value in body["binaryData"].values()]
    assert b"".join(map(base64.b64decode, parts)) == request.code
    assert max(len(json.dumps(body)) for body in bodies) < 1 << 20
    named = requested(job(code="."), engine="job", code_name=storage.code_name(request))
    assert pod.template(named, Part())["spec"] == pod.template(request, Part())["spec"]
    (volume,) = [
        v for v in pod.template(named, Part())["spec"]["volumes"] if v["name"] == "code-bundle"
    ]
    sources = volume.get("projected", {}).get("sources") or [volume]
    used = [source["configMap"]["name"] for source in sources]
    assert used == [body["metadata"]["name"] for body in bodies]
    files = [file for body in bodies for file in body["binaryData"]]
    assert files == sorted(files), "the order in which they are joined"


def test_links_that_lead_outside_are_refused(project: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    (project / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(Error, match="cannot be shipped"):
        bundle(project)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Error, match="cannot be shipped"):
        bundle(tmp_path / "no")

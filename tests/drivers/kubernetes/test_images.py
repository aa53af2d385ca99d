"""The images of deploy/images are pinned, built in stages, and run as the user of the manifests."""

import re
from pathlib import Path

import pytest

from holdfast.drivers.kubernetes.manifests.security import GROUP
from tests.tidy.source import ROOT

FOLDER = ROOT / "deploy" / "images"
IMAGES = sorted(FOLDER.glob("Dockerfile.*[!e]"))
PINNED = re.compile(r"[a-z][a-z0-9./-]*:[0-9]+\.[0-9]+\.[0-9]+[a-z0-9.-]*(@sha256:[0-9a-f]{64})?")
Step = tuple[str, str]


def steps(path: Path) -> list[Step]:
    """Instructions with their arguments, continued lines joined, comments left out."""
    lines = (line for line in path.read_text().splitlines() if not line.lstrip().startswith("#"))
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    words = (line.split(maxsplit=1) for line in joined.splitlines() if line.strip())
    return [(word.upper(), rest) for word, rest in words]


def of(kind: str, path: Path) -> list[str]:
    return [rest for word, rest in steps(path) if word == kind]


def test_there_is_one_without_torch_and_one_with() -> None:
    assert [path.name for path in IMAGES] == ["Dockerfile.controller", "Dockerfile.training"]
    controller, training = (path.read_text() for path in IMAGES)
    assert "torch==" not in controller
    assert "[train]" not in controller
    assert "grep '^torch==' constraints.txt" in training
    assert "[train,s3]" in training, "the archive tier needs its client on the nodes"


@pytest.mark.parametrize("path", IMAGES, ids=lambda path: path.name)
def test_bases_and_packages_are_pinned(path: Path) -> None:
    (base,) = of("ARG", path)
    assert PINNED.fullmatch(base.partition("=")[2])
    assert {image.split()[0] for image in of("FROM", path)} == {"${PYTHON}"}
    for run in of("RUN", path):
        for install in re.findall(r"pip install[^&]*", run):
            assert "-c constraints.txt" in install or "constraints.txt)" in install


@pytest.mark.parametrize("path", IMAGES, ids=lambda path: path.name)
def test_what_builds_stays_behind(path: Path) -> None:
    first, last = of("FROM", path)
    assert first.endswith(" AS build")
    assert " AS " not in last
    final = steps(path)[max(i for i, (word, _) in enumerate(steps(path)) if word == "FROM") :]
    copied = [rest for word, rest in final if word in ("COPY", "ADD")]
    assert copied == ["--from=build /opt/holdfast /opt/holdfast"]


@pytest.mark.parametrize("path", IMAGES, ids=lambda path: path.name)
def test_it_runs_as_the_user_whose_group_owns_the_volumes(path: Path) -> None:
    """By number, because runAsNonRoot cannot look up a name; nothing is done as root after it."""
    words = [word for word, _ in steps(path)]
    assert of("USER", path) == [f"{GROUP}:{GROUP}"]
    assert set(words[words.index("USER") + 1 :]) == {"CMD"}


@pytest.mark.parametrize("path", IMAGES, ids=lambda path: path.name)
def test_only_what_is_copied_is_sent_to_the_builder(path: Path) -> None:
    ignored = path.with_name(f"{path.name}.dockerignore").read_text().split()
    assert ignored[0] == "*"
    allowed = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    build = [rest.split()[:-1] for rest in of("COPY", path) if not rest.startswith("--from")]
    assert {name for names in build for name in names} == allowed
    assert all((ROOT / name).exists() for name in allowed)


@pytest.mark.parametrize("path", IMAGES, ids=lambda path: path.name)
def test_the_command_that_builds_it_stands_in_it_and_in_the_guide(path: Path) -> None:
    command = f"docker build -f deploy/images/{path.name} "
    assert command in path.read_text()
    assert command in (ROOT / "docs" / "guides" / "security.md").read_text()

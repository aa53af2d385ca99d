"""The first version of a job comes back as it was started, whatever its user has edited since."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import bundles
from holdfast.agent.job_versions import JobVersions
from holdfast.drivers import started_code
from holdfast.spec import Job, job_from_dict
from holdfast.spec.load import located
from holdfast.versions import FIRST, Version


class Started:
    """A job that was started from a folder, and the folder of the job."""

    def __init__(self, tmp_path: Path) -> None:
        self.source, self.folder = tmp_path / "source", tmp_path / "job"
        self.source.mkdir()
        self.folder.mkdir()
        self.edit("print(1)\n")
        (self.source / "run.log").touch()
        described = job_from_dict({"name": "j", "script": "train.py"}, where="test")
        self.job: Job = located(described, self.source)
        self.begin()

    def begin(self) -> None:
        started_code.begin(self.folder)
        started_code.keep(self.job, self.folder)

    def edit(self, text: str) -> None:
        (self.source / "train.py").write_text(text)

    def settle(self) -> bool:
        return started_code.settle(self.job, self.folder)

    def runs(self, version: Version = FIRST) -> str:
        """The source that a node would run."""
        code = self.folder / bundles.FOLDER
        script = JobVersions(self.job, code, instrumented=False).program(version).script
        assert script is not None, "the job has one"
        return Path(script).read_text()


@pytest.fixture
def started(tmp_path: Path) -> Started:
    return Started(tmp_path)


def test_what_was_edited_before_an_update_is_not_what_a_rollback_brings_back(
    started: Started,
) -> None:
    started.edit("print(2)\n")
    assert started.runs() == "print(2)\n", "an edit alone is run from the next attempt on"
    assert started.settle() and started.runs() == "print(1)\n"
    assert started.runs(Version(number=2, sets={"lr": "1"})) == "print(1)\n"
    started.edit("print(3)\n")
    assert started.settle() and started.runs() == "print(1)\n"


def test_code_that_was_not_edited_stays_where_it_is(started: Started) -> None:
    assert started.settle()
    assert not (started.folder / bundles.FOLDER / bundles.FIRST).exists()
    (started.source / "run.log").write_text("of the run")
    (started.source / "new.py").write_text("")
    assert started.settle()
    started.edit("print(2)\n")
    assert started.runs() == "print(2)\n"
    started.edit("print(1)\n")
    (started.source / "train.py").unlink()
    assert started.settle() and started.runs() == "print(1)\n"


def test_another_life_of_the_job_begins_with_what_lies_there_then(started: Started) -> None:
    started.edit("print(2)\n")
    assert started.settle() and started.runs() == "print(1)\n"
    started.begin()
    assert started.runs() == "print(2)\n"
    started.edit("print(3)\n")
    assert started.settle() and started.runs() == "print(2)\n"


@pytest.mark.parametrize("how", ["many", "large", "unreadable", "damaged"])
def test_what_is_not_kept_is_told_and_stays_as_it_lies_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    match how:
        case "many":
            monkeypatch.setattr(bundles, "SMALL_FILES", 0)
        case "large":
            monkeypatch.setattr(bundles, "SMALL_BYTES", 3)
        case "unreadable":
            monkeypatch.setattr(bundles, "_files", _unreadable)
    started = Started(tmp_path)
    if how == "damaged":
        (bundle,) = (started.folder / bundles.FOLDER).glob("*.tar.gz")
        bundle.write_bytes(b"half")
        started.edit("print(2)\n")
    assert not started.settle()
    assert started.runs() == (started.source / "train.py").read_text()


def _unreadable(folder: Path, _root: Path) -> Iterator[Path]:
    raise PermissionError(13, "Permission denied", str(folder))

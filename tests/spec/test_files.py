"""What a job names has to exist before anything starts."""

import zipfile
from pathlib import Path

import pytest

from holdfast.errors import Error
from holdfast.spec import Job
from holdfast.spec.files import require_files


def refused(job: Job) -> str:
    with pytest.raises(Error) as caught:
        require_files(job)
    assert caught.value.slug == "script-not-found"
    return str(caught.value)


def test_a_missing_script_folder_or_program_is_named(tmp_path: Path) -> None:
    here = str(tmp_path)
    assert "no such file" in refused(Job(name="a", script=f"{here}/none.py", workdir=here))
    assert "it is a folder" in refused(Job(name="a", script=here, workdir=here))
    assert "no such folder" in refused(Job(name="a", module="m", workdir=f"{here}/none"))
    assert "no-such-program" in refused(Job(name="a", command=("no-such-program",), workdir=here))


def test_a_program_that_may_not_be_executed_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("#!/bin/sh\n")
    refused(Job(name="a", command=("./tool",), workdir=str(tmp_path)))
    (tmp_path / "tool").chmod(0o755)
    require_files(Job(name="a", command=("./tool",), workdir=str(tmp_path)))


def test_programs_are_looked_up_on_the_path_of_the_job(tmp_path: Path) -> None:
    (tmp_path / "only-here").write_text("#!/bin/sh\n")
    (tmp_path / "only-here").chmod(0o755)
    job = Job(name="a", command=("only-here",), env={"PATH": str(tmp_path)}, workdir="/")
    require_files(job)
    refused(job.model_copy(update={"env": {}}))


def test_a_program_in_another_language_is_refused_as_a_script(tmp_path: Path) -> None:
    here = str(tmp_path)
    job = Job(name="a", script=f"{here}/train", workdir=here)

    def refused_as(text: str) -> str:
        (tmp_path / "train").write_text(text)
        return refused(job)

    assert "/bin/bash" in refused_as("#!/bin/bash\necho one\n")
    assert "--no-python" in refused_as("\x7fELF\x02\x01")
    assert "--no-python" in refused(Job(name="a", script=f"{here}/sh", workdir=here))
    for launcher in ("torchrun", "accelerate", "python"):  # started by --no-python, they would nest
        told = refused(Job(name="a", script=f"{here}/{launcher}", workdir=here))
        assert f"takes the place of `{launcher}`" in told and "--no-python" not in told
    (tmp_path / "train").write_bytes(b"#!/bin/sh\nexec python3 $0\n")
    with zipfile.ZipFile(tmp_path / "train", "a") as archive:
        archive.writestr("__main__.py", "")
    require_files(job)
    for text in ("#!/usr/bin/env python\nx = \n", "#!/bin/sh\n'''exec python\n'''\n", "x = \n"):
        (tmp_path / "train").write_text(text)
        require_files(job)

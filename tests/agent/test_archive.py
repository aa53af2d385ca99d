"""A zip archive is run as Python runs it."""

import subprocess
import sys
import zipapp
from pathlib import Path

RUN = """
import sys
from holdfast.agent.child import run_as_main
from holdfast.agent.fork_protocol import Program
program = Program(script=sys.argv[1], args=("one",), workdir=sys.argv[2])
sys.path.insert(0, program.path_entry())
run_as_main(program)
"""


def test_an_archive_runs_its_main_and_finds_its_modules(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "__main__.py").write_text(
        "import model, sys\nprint(model.__file__, __file__, __name__, sys.argv, sys.path[:2])\n"
    )
    (code / "model.py").write_text("")
    archive = tmp_path / "train.pyz"
    zipapp.create_archive(code, archive, "/usr/bin/env python3")

    def run(*command: str) -> str:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    plain = run(sys.executable, "-P", str(archive), "one")
    here = str(tmp_path)
    assert run(sys.executable, "-P", "-c", RUN, str(archive), here) == plain
    assert f"{archive}/model.py" in plain

    damaged = tmp_path / "damaged.pyz"
    damaged.write_bytes(archive.read_bytes().replace(b"PK\x03\x04", b"PK\x03\x05"))
    command = sys.executable, "-P", "-c", RUN, str(damaged), here
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 1 and "bad local file header" in found.stderr

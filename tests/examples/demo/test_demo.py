"""The demo can be interrupted at any time and then leaves nothing."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.more import sample
from tests.patience import PATIENCE_S, until

DEMO = Path(__file__).parents[3] / "examples" / "demo" / "demo.py"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "trained"),
    sample([(signal.SIGTERM, False)], [(signal.SIGINT, True)]),
)
@pytest.mark.usefixtures("nothing_left")
def test_interrupted_demo_stops_the_job_and_removes_its_home(
    tmp_path: Path, home: Path, number: signal.Signals, trained: bool
) -> None:
    environment = os.environ | {"TMPDIR": str(home)}  # its home lies below the one that is checked
    with (tmp_path / "output").open("wb") as output:
        demo = subprocess.Popen(
            [sys.executable, str(DEMO)], env=environment, stdout=output, stderr=output
        )
    try:
        wanted = "*/jobs/gpt/metrics.jsonl" if trained else "*/jobs/gpt/controller.json"
        assert until(lambda: bool(list(home.glob(wanted)))), _read(tmp_path)
        demo.send_signal(number)
        assert demo.wait(PATIENCE_S) == 130, _read(tmp_path)
        assert list(home.glob("holdfast-demo-*")) == []
    finally:
        demo.kill()
        demo.wait()


def _read(folder: Path) -> str:
    return (folder / "output").read_text()

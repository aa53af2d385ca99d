"""Prometheus' own tools, where they are installed: `make test-tools` does it where it may."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S

WHY = "{} is not installed: make test-tools"
promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason=WHY.format("promtool"))
prometheus = pytest.mark.skipif(shutil.which("prometheus") is None, reason=WHY.format("prometheus"))


def ask_promtool(*arguments: str | Path, text: str | None = None) -> None:
    """Fails with what it says unless it is content."""
    command = ["promtool", *map(str, arguments)]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr

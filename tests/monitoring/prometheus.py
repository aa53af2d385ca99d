"""Prometheus' own tools, where they are installed: `make test-tools` does it where it may. In CI
they have to be."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S

WHY = "{} is not installed: make test-tools"


def _needs(program: str) -> pytest.MarkDecorator:
    missing = shutil.which(program) is None and "CI" not in os.environ
    return pytest.mark.skipif(missing, reason=WHY.format(program))


promtool, prometheus = _needs("promtool"), _needs("prometheus")


def ask_promtool(*arguments: str | Path, text: str | None = None) -> None:
    """Fails with what it says unless it is content."""
    command = ["promtool", *map(str, arguments)]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr

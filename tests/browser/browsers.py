"""The browser of these tests, where it is installed. In CI it has to be."""

import os

import pytest

from headless import FOUND

chromium = pytest.mark.skipif(
    FOUND is None and "CI" not in os.environ, reason="chromium is not installed: make test-tools"
)

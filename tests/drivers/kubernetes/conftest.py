"""Fixtures that several tests of the driver for Kubernetes need."""

import pytest

from holdfast.drivers.kubernetes import segments


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of a few blocks: a journal of a hundred kilobytes has several."""
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 20_000)
    monkeypatch.setattr(segments, "BLOCK_BYTES", 5_000)

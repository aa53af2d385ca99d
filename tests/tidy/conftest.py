"""Syntax trees are made without looking for garbage, and are gone with the last of these tests."""

import gc
from collections.abc import Iterator

import pytest

from tests.tidy import source


@pytest.fixture(scope="package", autouse=True)
def _trees() -> Iterator[None]:
    gc.disable()
    yield
    source.forget()
    gc.enable()

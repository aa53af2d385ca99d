"""What HOLDFAST_TEST_MORE=1 adds: each promise is tested without it, more of the same only with it.

`sample` is for the values of a parametrised test: one of each kind always, the rest when asked for.
"""

import os
from collections.abc import Iterable
from typing import Any

import pytest

MORE = "HOLDFAST_TEST_MORE" in os.environ
long = pytest.mark.skipif(not MORE, reason="HOLDFAST_TEST_MORE=1")


def sample(always: Iterable[Any], when_asked: Iterable[Any]) -> list[Any]:
    """Values for `parametrize`."""
    return [*always, *(when_asked if MORE else ())]


def thinned(values: Iterable[Any], every: int) -> list[Any]:
    """For `parametrize`: each so manieth of values that are much alike, or all when asked for."""
    return [*values][:: 1 if MORE else every]


def examples(when_asked: int) -> int:
    """How many examples of a property are tried: a quarter of them without being asked."""
    return when_asked if MORE else when_asked // 4

"""An import that does nothing for a minute is told from one that takes long."""

from functools import partial

import pytest

from holdfast.agent.activity import Usage
from holdfast.agent.import_ahead import STILL_S, SlowImport

SECONDS = 200


def still_after(computes_s: float = 0.0, reads_bytes: int = 0, look_s: float = 1.0) -> int | None:
    """The look at which it stands still, of one that does so much each second."""
    one = SlowImport("lib", 0.0)
    for look in range(1, SECONDS):
        done = Usage(look * computes_s, 0.0, {}, look * reads_bytes)
        if one.stands_still(partial(_same, done), look * look_s):
            return look
    return None


def _same(usage: Usage) -> Usage:
    return usage


def test_an_import_that_does_nothing_or_only_looks_again_stands_still() -> None:
    assert still_after() == still_after(computes_s=0.01) == STILL_S + 1  # the first has no before


def test_one_that_computes_or_reads_takes_as_long_as_it_takes() -> None:
    assert still_after(computes_s=0.1) is None
    assert still_after(reads_bytes=1) is None


def test_a_node_that_was_stopped_has_not_looked() -> None:
    assert (still_after(look_s=3600.0) or 0) >= STILL_S / 2


@pytest.mark.parametrize("look_s", [0.1, 0.5])
def test_looks_may_come_more_often(look_s: float) -> None:
    assert still_after(look_s=look_s) == (None if SECONDS * look_s < STILL_S else 122)


def test_what_has_ended_does_not_stand_still() -> None:
    one = SlowImport("lib", 0.0)
    assert not any(one.stands_still(lambda: None, float(now)) for now in range(SECONDS))

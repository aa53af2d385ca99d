"""What is told of an exception of a worker."""

import resource

import pytest

from holdfast.agent.failures import describe


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (MemoryError(), True),
        (OSError(12, "Cannot allocate memory"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8"), True),
        (ValueError("3"), False),
    ],
)
def test_memory_that_the_shell_has_limited_is_told_with_the_limit(
    monkeypatch: pytest.MonkeyPatch, error: Exception, named: bool
) -> None:
    """The machine had 21 GiB left, and the account said no more than MemoryError."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (20 << 30, 20 << 30))
    assert ("ulimit -v" in describe(error).message) == named
    assert ("is 20.0 GiB" in describe(error).message) == named
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    assert "ulimit" not in describe(error).message

"""What is told of an exception of a worker."""

import resource

import pytest
from torch.multiprocessing.spawn import ProcessRaisedException

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


def test_what_a_spawned_rank_raised_is_told_as_its_own() -> None:
    """Its place is that of the bug, not that of the call of spawn: other bugs are other errors."""
    message = (
        "\n\n-- Process 1 terminated with the following error:\n"
        "Traceback (most recent call last):\n"
        '  File "/venv/lib/python3.11/site-packages/torch/multiprocessing/spawn.py", line 87, in '
        "_wrap\n    fn(i, *args)\n"
        '  File "/job/train.py", line 20, in train\n    raise ValueError("bad sample")\n'
        "ValueError: bad sample\n"
    )
    told = describe(ProcessRaisedException(message, 1, 4711))
    assert (told.type, told.message, told.file, told.line) == (
        "ValueError", "bad sample", "/job/train.py", 20,
    )  # fmt: skip
    assert "ProcessRaisedException" in told.traceback and "bad sample" in told.traceback
    other = describe(ProcessRaisedException("no traceback", 1, 4711))
    assert other.type == "torch.multiprocessing.spawn.ProcessRaisedException"

"""Limits of the shell that are too small are named before anything starts."""

import os
import resource
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from holdfast.drivers.engines import HERE
from holdfast.drivers.limits import (
    ADDRESS_BYTES_MIN,
    FILE_BYTES_MIN,
    require_limits,
    require_loopback,
    require_room,
)
from holdfast.errors import Error, ExitStatus
from holdfast.spec import Job

SMALL = Job(name="job", command=("true",), workers_per_node=1)
UNLIMITED = resource.RLIM_INFINITY


def limited(monkeypatch: pytest.MonkeyPatch, kind: int, soft: int, hard: int = UNLIMITED) -> None:
    """As if the shell had set this limit, and no other."""
    monkeypatch.setattr(
        resource, "getrlimit", lambda asked: (soft, hard) if asked == kind else (UNLIMITED,) * 2
    )


@pytest.mark.parametrize(
    ("kind", "soft", "said"),
    [
        (resource.RLIMIT_NOFILE, 40, "open files (ulimit -n) is 40, and the job needs 64"),
        (resource.RLIMIT_AS, 2048, "memory, in KiB (ulimit -v) is 2, and the job needs 393216"),
        (resource.RLIMIT_FSIZE, 1024, "in KiB (ulimit -f) is 1, and the job needs 65536"),
    ],
)
def test_a_limit_that_is_too_small_is_named_with_what_is_needed(
    monkeypatch: pytest.MonkeyPatch, kind: int, soft: int, said: str
) -> None:
    limited(monkeypatch, kind, soft)
    with pytest.raises(Error) as raised:
        require_limits(SMALL)
    assert said in raised.value.what and raised.value.status == ExitStatus.PLATFORM
    assert raised.value.help.startswith("ulimit -S ") and "another" not in raised.value.help
    limited(monkeypatch, kind, soft, hard=soft)
    with pytest.raises(Error, match="in another shell"):
        require_limits(SMALL)


def test_a_user_who_may_not_start_enough_processes_is_told_how_many_are_in_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Found by hand with `ulimit -u 20`: workers "exited with status 71"; with 6 the controller
    ended with a traceback. Threads count, those of others do not, and nobody limits root."""
    mine, theirs = os.getuid(), os.getuid() + 1
    running = [_Running(mine, 10), _Running(theirs, 1000), _Running(None, None)]
    monkeypatch.setattr(psutil, "process_iter", lambda _attributes: running)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    limited(monkeypatch, resource.RLIMIT_NPROC, 31)
    with pytest.raises(
        Error, match="allows 31, 10 are in use, and the job needs 22 more"
    ) as raised:
        require_limits(SMALL)
    assert raised.value.slug == "limit-too-small" and "ulimit -u" in raised.value.what
    limited(monkeypatch, resource.RLIMIT_NPROC, 32)
    require_limits(SMALL)
    limited(monkeypatch, resource.RLIMIT_NPROC, 6)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    require_limits(SMALL)


class _Running:
    """As `psutil.process_iter` has a process; of one that is gone it knows nothing."""

    def __init__(self, uid: int | None, threads: int | None) -> None:
        uids = None if uid is None else SimpleNamespace(real=uid)
        self.info = {"uids": uids, "num_threads": threads}


def test_enough_is_enough_and_more_nodes_or_workers_need_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limited(monkeypatch, resource.RLIMIT_FSIZE, FILE_BYTES_MIN)
    require_limits(SMALL)
    limited(monkeypatch, resource.RLIMIT_AS, ADDRESS_BYTES_MIN)
    require_limits(SMALL)
    with pytest.raises(Error, match="the job needs 1048576"):
        require_limits(SMALL.model_copy(update={"command": None, "script": "train.py"}))
    limited(monkeypatch, resource.RLIMIT_NOFILE, 64)
    require_limits(SMALL)
    for more in ({"nodes": {"count": 90, "spares": 9}}, {"workers_per_node": 8}):
        with pytest.raises(Error, match="open files"):
            require_limits(Job.model_validate(SMALL.model_dump() | more))


@pytest.mark.parametrize("many", [{"nodes": {"count": 1000}}, {"workers_per_node": 1000}])
def test_more_nodes_or_workers_than_fit_into_memory_are_refused_before_any_starts(
    monkeypatch: pytest.MonkeyPatch, many: dict[str, Any]
) -> None:
    """A thousand of them on a laptop were started until it could do nothing any more."""
    memory = psutil.virtual_memory()._replace(total=14 << 30)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    plain = {"name": "job", "script": "train.py", "workers_per_node": 8}
    require_room(Job.model_validate(plain))
    with pytest.raises(Error, match=r"GiB of memory here, and the machine has 14\.0 GiB") as raised:
        require_room(Job.model_validate(plain | many))
    assert (raised.value.slug, raised.value.status) == ("machine-too-small", ExitStatus.PLATFORM)


def test_so_are_more_workers_than_its_processors_would_ever_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With memory for all of them a thousand on two processors were waited for without a word."""
    memory = psutil.virtual_memory()._replace(total=1 << 50)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    require_room(Job.model_validate(SMALL.model_dump() | {"workers_per_node": 256}))
    with pytest.raises(Error, match="1000 workers of a node would share 2 processors here"):
        require_room(Job.model_validate(SMALL.model_dump() | {"workers_per_node": 1000}))


def test_a_machine_without_loopback_is_refused_before_agents_look_for_their_controller() -> None:
    """Three minutes passed until the job gave up, without a word on the interface."""
    require_loopback(HERE)
    with pytest.raises(Error, match="loopback interface cannot be used") as raised:
        require_loopback("255.255.255.255")  # refused by every machine, as HERE is by one without
    assert raised.value.slug == "platform-unsupported"

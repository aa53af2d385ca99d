"""A store of objects that is slow, broken or full makes a save fail, in time and by its reason."""

import contextlib
import os
import random
from typing import Any
from urllib.parse import urlsplit

import pytest

from holdfast.checkpoint import objects
from holdfast.checkpoint.catalog import committed, verify
from holdfast.checkpoint.key import Key
from holdfast.checkpoint.open_store import open_store
from holdfast.checkpoint.save import commit
from holdfast.checkpoint.stores import CheckpointStore
from holdfast.errors import Error
from tests.checkpoint.faults import Answer, Break, Choose, Fault, Silence, proxied
from tests.checkpoint.making import NOW, Snapshot, saved
from tests.more import sample
from tests.patience import PATIENCE_S


def _options(patience_s: float) -> dict[str, Any]:
    retries = {"total_max_attempts": 2, "mode": "standard"}
    waits = {"connect_timeout": patience_s, "read_timeout": patience_s}
    return {"config_kwargs": {**waits, "retries": retries}}


PATIENT = _options(PATIENCE_S)  # a busy machine answers late
QUICK = _options(0.2)  # for one that never answers


def through(place: str, endpoint: str, options: dict[str, Any] = PATIENT) -> CheckpointStore:
    """The place, by way of a proxy."""
    return open_store(place, options={**options, "client_kwargs": {"endpoint_url": endpoint}})


def address(endpoint: str) -> tuple[str, int]:
    parts = urlsplit(endpoint)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


def test_what_is_counted_is_sound_however_often_requests_fail(
    s3_place: str, s3_endpoint: str, snapshot: Snapshot
) -> None:
    dice = random.Random(6)
    faults: list[Fault] = [
        Answer(500, "InternalError"),
        Answer(503, "SlowDown"),
        Break(0),
        Break(90),
    ]
    seen: list[Fault] = []

    def choose(_: bytes) -> Fault:
        fault = dice.choice(faults) if dice.random() < 0.12 else None
        seen.append(fault)
        return fault

    with proxied(address(s3_endpoint), choose) as endpoint:
        store = through(s3_place, endpoint)
        for step in range(1, 5):
            with contextlib.suppress(Error):
                saved(store, snapshot, Key(1, step), x=str(step).encode() * 20_000)
                commit(store, Key(1, step), ranks=[0], now=NOW)
    assert {type(fault) for fault in seen} == {type(None), Answer, Break}
    sound = open_store(s3_place)
    found = committed(sound)
    assert found
    assert all(verify(sound, one.key) == [] for one in found)


@pytest.mark.parametrize(
    ("fault", "slug"),
    sample(
        [
            (Answer(403, "AccessDenied"), "storage-denied"),
            (Answer(404, "NoSuchBucket"), "storage-missing"),
            (Answer(507, "XMinioStorageFull"), "storage-full"),
            (Silence(), "storage-unreachable"),
        ],
        [
            (Answer(403, "InvalidAccessKeyId"), "storage-denied"),
            (Answer(500, "InternalError"), "storage-unreachable"),
            (Break(0), "storage-unreachable"),
        ],
    ),
)
def test_each_failure_is_told_by_its_reason_and_in_time(
    s3_place: str, s3_endpoint: str, fault: Fault, slug: str
) -> None:
    options = QUICK if isinstance(fault, Silence) else PATIENT
    with proxied(address(s3_endpoint), lambda _: fault) as endpoint:
        store = through(s3_place, endpoint, options)
        with pytest.raises(Error) as caught:
            store.put("a/b", b"1")
    assert caught.value.slug == slug, caught.value
    done = ["b"] if isinstance(fault, Break) else []  # only the answer was lost
    assert open_store(s3_place).list("a") == done


def test_a_store_that_is_not_there_is_unreachable(s3_place: str) -> None:
    with pytest.raises(Error) as caught:
        through(s3_place, "http://127.0.0.1:1").list("")
    assert caught.value.slug == "storage-unreachable"
    assert "AWS_ENDPOINT_URL" in caught.value.help


def test_a_bucket_that_does_not_exist_is_told_when_something_is_written(s3_place: str) -> None:
    assert s3_place
    with pytest.raises(Error) as caught:
        open_store("s3://no-such-bucket-here/job").put("a", b"1")
    assert caught.value.slug == "storage-missing"


# ── parts ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> int:
    """The smallest parts that S3 takes."""
    monkeypatch.setattr(objects, "PART_BYTES", 5 << 20)
    return 5 << 20


def uploads(place: str) -> list[str]:
    """Uploads of parts that were begun and neither finished nor given up."""
    import s3fs  # type: ignore[import-untyped]

    bucket = urlsplit(place).netloc
    return list(s3fs.S3FileSystem(skip_instance_cache=True).list_multipart_uploads(bucket))


@pytest.mark.parametrize("extra", [0, 1])
def test_a_large_file_goes_up_in_parts(s3_place: str, small_parts: int, extra: int) -> None:
    data = os.urandom(2 * small_parts + extra)
    store = open_store(s3_place)
    with store.create("a/big") as upload:
        for at in range(0, len(data), 3_000_000):
            upload.write(memoryview(data)[at : at + 3_000_000])
        assert store.list("a") == []
    assert store.read("a/big") == data
    assert uploads(s3_place) == []


def broken_parts(line: bytes) -> Fault:
    """Parts do not get through; all else does."""
    return Answer(500, "InternalError") if b"partNumber=2" in line else None


def one_part_breaks_off() -> Choose:
    """The answer to the second part is lost, once."""
    left = [Break(10)]
    return lambda line: left.pop() if b"partNumber=2" in line and left else None


def test_a_part_that_breaks_off_is_sent_again(
    s3_place: str, s3_endpoint: str, small_parts: int
) -> None:
    data = os.urandom(3 * small_parts)
    with proxied(address(s3_endpoint), one_part_breaks_off()) as endpoint:
        with through(s3_place, endpoint).create("a/big") as upload:
            upload.write(data)
    assert open_store(s3_place).read("a/big") == data


def test_parts_that_cannot_be_sent_fail_the_save_and_leave_nothing(
    s3_place: str, s3_endpoint: str, small_parts: int
) -> None:
    with proxied(address(s3_endpoint), broken_parts) as endpoint:
        store = through(s3_place, endpoint)
        with pytest.raises(Error, match="is unreachable"), store.create("a/big") as upload:
            upload.write(bytes(3 * small_parts))
    assert open_store(s3_place).list("a") == []
    assert uploads(s3_place) == []


def test_a_large_file_that_is_called_off_leaves_nothing(s3_place: str, small_parts: int) -> None:
    store = open_store(s3_place)
    with contextlib.suppress(KeyboardInterrupt), store.create("a/big") as upload:
        upload.write(bytes(2 * small_parts))
        raise KeyboardInterrupt
    assert store.list("a") == []
    assert uploads(s3_place) == []

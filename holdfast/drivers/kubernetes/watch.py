"""Keeps somebody up to date about the objects of one kind: list once, then watch.

`on_listed` gets all objects there are, `on_change` each change after that. A watch that ends, is
cut or meets a busy server goes on from the last version that was heard of; only if that is too old
(410), or refused for another reason that does not pass, is everything listed again, and `on_listed`
gets all of it a second time. So whoever listens must reconcile in `on_listed`: what it knew and is
not in there is gone.
"""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from holdfast.drivers.kubernetes.cluster import ApiError, Bookmark, Change, Cluster, GoneError, Kind
from holdfast.drivers.kubernetes.talk import Complaint

T = TypeVar("T")

PAUSE_S = 0.1  # after the first failure; doubles
PAUSE_MAX_S = 10.0
SHORT_S = 1.0  # a watch that ends sooner is a failure: something in between cuts it


def _nothing(_error: ApiError) -> None:
    pass


def said_once(what: str) -> Callable[[ApiError], None]:
    """For `on_trouble`: says why something is not followed, unless that passes by itself."""
    complain = Complaint()

    def told(error: ApiError) -> None:
        if not (error.transient or isinstance(error, GoneError)):
            complain(f"{what} cannot be watched, and are listed again and again: {error}")

    return told


async def follow(
    cluster: Cluster,
    kind: Kind,
    shape: type[T],
    labels: str,
    on_listed: Callable[[Sequence[T]], None],
    on_change: Callable[[Change[T]], None],
    *,
    name: str = "",
    namespace: str | None = None,
    on_trouble: Callable[[ApiError], None] = _nothing,
) -> None:
    """Tell what there is and what changes, until cancelled. `labels` is a selector as text; with
    `name` it is about that object alone.

    `on_trouble` hears of every failure, before the next try.
    """
    version, failures = "", 0
    while True:
        began = time.monotonic()
        try:
            if not version:
                found = await cluster.listed(
                    kind, shape, labels=labels, name=name, namespace=namespace
                )
                on_listed(found.items)
                version = found.version
            async for told in cluster.watched(
                kind, shape, since=version, labels=labels, name=name, namespace=namespace
            ):
                failures, version = 0, told.version
                if not isinstance(told, Bookmark):
                    on_change(told)
            failures += time.monotonic() - began < SHORT_S
        except ApiError as exc:
            version = version if exc.transient else ""
            failures += 1
            on_trouble(exc)
        if failures:
            await asyncio.sleep(_pause_s(failures))


def _pause_s(failures: int) -> float:
    """Grows up to a limit, and a bit at random, so that not everybody comes back at once."""
    grown = PAUSE_S * 2.0 ** min(failures - 1, 10)
    return float(min(PAUSE_MAX_S, grown) * random.uniform(0.5, 1.5))

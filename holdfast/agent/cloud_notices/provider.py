"""The notices of a cloud as a provider of the node's health.

Each question is asked at each look, and keeps its last answer while it gets none: silence takes no
notice back. A service that has never answered is asked less often, for a pod may not reach it, and
that is told once. What lies more than `LEAD_S` ahead is told, and leads to nothing yet: clouds plan
maintenance days ahead, and may change their plans.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from holdfast.agent.cloud_notices.clouds import (
    AT,
    CLOUDS,
    DMI,
    Cloud,
    CloudNotice,
    CloudSession,
    cloud_of,
)
from holdfast.agent.cloud_notices.metadata import MetadataService
from holdfast.agent.health.find import root_of
from holdfast.agent.health.provider import Missing
from holdfast.agent.notes import note
from holdfast.detection.health import Reading
from holdfast.spec.job import CloudNotices

VARIABLE = "HOLDFAST_METADATA_URL"
NODE = "{node}"
LOOK_S = 3.0  # AWS asks for 5 s or less, Google leaves 30 s, Azure 30 s or more
UNHEARD_S = 30.0  # where nothing has ever answered
SILENT_S = 60.0  # without an answer, before that is told
LEAD_S = 900.0  # Azure announces a reboot so long before
LOOPBACK = ("127.0.0.1", "::1", "localhost")
LEAVES, TOLD, NONE = "cloud-removal", "cloud-warning", "cloud-notices"


class MetadataWatch:
    """What one cloud says of this machine; `say` is told what happens to the watch itself."""

    name = "cloud notices"
    stalled = None

    def __init__(
        self,
        cloud: Cloud,
        url: str,
        say: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._cloud, self._url, self._say, self._clock = cloud, url, say, clock
        self._session = CloudSession(cloud, MetadataService(url))
        self._known: dict[str, list[CloudNotice]] = {}  # by path, as it was answered last
        self._since: dict[str, float] = {}  # by source: when it was first seen
        self._heard_at: float | None = None
        self._refused: set[str] = set()  # paths whose failure was told
        self._why = ""  # nothing has ever answered: the first reason
        self.leaves_at: float | None = None
        """When the machine goes, in seconds since the epoch; None: nothing says so, or when."""

    @property
    def every_s(self) -> float:
        """Between two looks."""
        return LOOK_S if self._heard_at is not None else UNHEARD_S

    def read(self) -> list[Reading]:
        """One look. Raises `OSError` where there is nothing to tell because nothing answers."""
        now, failures = self._clock(), self._ask()
        if len(failures) < len(self._cloud.questions):
            self._hear(now, failures)
        notices = [notice for found in self._known.values() for notice in found]
        notices.sort(key=lambda one: one.at or 0.0)  # the first of a kind is what is told
        self._remember(notices, now)
        if not notices and len(failures) == len(self._cloud.questions):
            return self._unheard(now, next(iter(failures.values())))
        return [self._reading(one, now) for one in notices] or [
            Reading(NONE, 0.0, self._cloud.name, "no notice")
        ]

    def _ask(self) -> dict[str, str]:
        """Why which path has not been answered; a machine that nothing reaches is asked once."""
        failures: dict[str, str] = {}
        for question in self._cloud.questions:
            try:
                self._known[question.path] = self._session.ask(question)
            except (OSError, ValueError) as error:
                failures[question.path] = f"{error}"
                if isinstance(error, TimeoutError):
                    rest = (one.path for one in self._cloud.questions)
                    return {**dict.fromkeys(rest, str(error)), **failures}
        return failures

    def _hear(self, now: float, failures: Mapping[str, str]) -> None:
        if self._heard_at is None:
            where = f"{self._cloud.name}'s metadata service ({self._url})"
            self._say(f"agent: spot and maintenance notices are read from {where}")
        self._heard_at = now
        for path, why in failures.items():
            if path not in self._refused:
                self._refused.add(path)
                self._say(f"agent: notices of {path} cannot be read: {why}")

    def _unheard(self, now: float, why: str) -> list[Reading]:
        if self._heard_at is None:
            self._why = self._why or why
            raise OSError(
                f"{self._cloud.name}'s metadata service ({self._url}) does not answer: {self._why};"
                " notices are seen only as taints and signals"
            )
        if now - self._heard_at >= SILENT_S:
            raise OSError(f"{self._url} has not answered for more than {SILENT_S:g} s")
        return []

    def _remember(self, notices: list[CloudNotice], now: float) -> None:
        """When the machine goes, by those that say so while that is still to come: an agent that
        was started after it is on a machine that has stayed."""
        self._since = {one.source: self._since.get(one.source, now) for one in notices}
        ends = [
            at
            for one in notices
            if one.leaves and (at := self._end(one)) is not None and at > self._since[one.source]
        ]
        self.leaves_at = min(ends, default=None)

    def _end(self, notice: CloudNotice) -> float | None:
        if notice.within_s is not None:
            return self._since[notice.source] + notice.within_s
        return notice.at

    def _reading(self, notice: CloudNotice, now: float) -> Reading:
        at = self._end(notice)
        kind = LEAVES if notice.leaves and (at is None or at - now <= LEAD_S) else TOLD
        when = f" at {time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(at))} UTC" if at else ""
        text = f"{notice.what}{when} ({self._cloud.name}, {notice.source})"
        return Reading(kind, 1.0, notice.source, text)


def find(
    root: Path, wish: CloudNotices, url: str = "", say: Callable[[str], None] = lambda _: None
) -> MetadataWatch | Missing:
    """The cloud that is wished for or, with `auto`, that this machine is one of. Asks nobody."""
    key = cloud_of(root) if wish == "auto" else wish
    if key == "off":
        return Missing(MetadataWatch.name, "recovery.cloud_notices is off")
    if not key:
        named = ", ".join(cloud.name for cloud in CLOUDS.values())
        why = f"{root / DMI} names none of {named}"
        return Missing(MetadataWatch.name, why)
    return MetadataWatch(CLOUDS[key], url or AT, say)


def url_of(environ: Mapping[str, str], name: str) -> str:
    """Where the metadata service is, for the node of this name; empty: where clouds have it."""
    return environ.get(VARIABLE, "").replace(NODE, name)


def of_node(
    wish: CloudNotices, name: str, address: str, environ: Mapping[str, str]
) -> MetadataWatch | None:
    """For the agent of this node. Where all nodes are on this machine nobody could take over."""
    if wish == "auto" and address in LOOPBACK:
        return None
    found = find(root_of(environ, name), wish, url_of(environ, name), note)
    return None if isinstance(found, Missing) else found

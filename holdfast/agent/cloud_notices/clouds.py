"""How each cloud announces that it takes a machine away, or touches it: one table of questions.

AWS: IMDSv2 of EC2. `spot/instance-action`, `events/recommendations/rebalance` and
`events/maintenance/scheduled` are 404 while there is nothing to tell.
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/rebalance-recommendations.html
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/viewing_scheduled_events.html

Google Cloud: `instance/preempted` (then 30 s are left) and `instance/maintenance-event`.
https://cloud.google.com/compute/docs/instances/spot
https://cloud.google.com/compute/docs/metadata/getting-live-migration-notice

Azure: Scheduled Events. All machines of a scale set or an availability set get the same document,
so an event counts only if it names this one. The first answer may take two minutes.
https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events

A recommendation, a live migration and a pause of some seconds announce no end: these are told and
nothing follows from them. `MetadataQuestion.read` makes notices of a text, and raises `ValueError`
where that is not what the cloud has documented.
"""

import calendar
import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from holdfast.agent.cloud_notices.metadata import MetadataAnswer, MetadataService
from holdfast.agent.health.provider import text_of

T = TypeVar("T")

AT = "http://169.254.169.254"
DMI = "sys/class/dmi/id"
PREEMPTED_S = 30.0  # between Google's notice of a preemption and the end of the machine
TOKEN_S = 21_600
TOKEN = "X-aws-ec2-metadata-token"


class CloudNotice(NamedTuple):
    """Something that is announced."""

    what: str  # for people: "the spot instance is reclaimed"
    source: str  # in the cloud's own words, to be searched for
    at: float | None = None  # seconds since the epoch; None: nobody said when
    leaves: bool = True  # the machine, or what it has in memory, goes; else it is only told
    within_s: float | None = None  # where it is so long after it was first seen


class MetadataQuestion(NamedTuple):
    """One path of a metadata service."""

    path: str
    read: Callable[[str, str], list[CloudNotice]]  # of the text, and the name of this machine
    may_be_missing: bool = False  # 404: there is nothing to tell


class Cloud(NamedTuple):
    """Whom to ask for what."""

    name: str
    questions: tuple[MetadataQuestion, ...]
    headers: Mapping[str, str] = {}
    has_token: bool = False  # which is fetched first, and is sent with each question
    own_name: str = ""  # path of the name that events call this machine
    signed: tuple[str, str] = ("", "")  # header that every answer has, and its value
    vendors: tuple[tuple[str, str], ...] = ()  # file of DMI, and what is in it


# ── AWS ──


class _InstanceAction(msgspec.Struct):
    action: str
    time: str


class _Maintenance(msgspec.Struct, rename="pascal"):
    code: str
    not_before: str
    state: str = ""
    description: str = ""


MAINTENANCE = {
    "instance-reboot": "the cloud is about to reboot it",
    "system-reboot": "the cloud is about to reboot its host",
    "system-maintenance": "the cloud is about to maintain its host",
    "instance-retirement": "the cloud is about to retire it",
    "instance-stop": "the cloud is about to stop it",
}


def _spot(text: str, _: str) -> list[CloudNotice]:
    found = _json(text, _InstanceAction)
    at = _iso(found.time)
    return [
        CloudNotice("the spot instance is reclaimed", f"spot/instance-action: {found.action}", at)
    ]


def _rebalance(text: str, _: str) -> list[CloudNotice]:
    _json(text, dict[str, str])
    what = "the spot instance is at an elevated risk of being reclaimed"
    return [CloudNotice(what, "events/recommendations/rebalance", leaves=False)]


def _maintenance(text: str, _: str) -> list[CloudNotice]:
    return [
        CloudNotice(
            MAINTENANCE.get(one.code, "the cloud has maintenance scheduled"),
            f"events/maintenance/scheduled: {one.code}",
            calendar.timegm(time.strptime(one.not_before, "%d %b %Y %H:%M:%S GMT")),
        )
        for one in _json(text, list[_Maintenance])
        if one.state in ("", "active") and "[Completed]" not in one.description
    ]


# ── Google Cloud ──


def _preempted(text: str, _: str) -> list[CloudNotice]:
    if _one_of(text, "TRUE", "FALSE") == "FALSE":
        return []
    return [
        CloudNotice("the instance is preempted", "instance/preempted: TRUE", within_s=PREEMPTED_S)
    ]


def _host_maintenance(text: str, _: str) -> list[CloudNotice]:
    said = _one_of(text, "NONE", "MIGRATE_ON_HOST_MAINTENANCE", "TERMINATE_ON_HOST_MAINTENANCE")
    source = f"instance/maintenance-event: {said}"
    match said:
        case "NONE":
            return []
        case "MIGRATE_ON_HOST_MAINTENANCE":
            return [CloudNotice("the instance is migrated live", source, leaves=False)]
        case _:
            return [CloudNotice("the instance is terminated for maintenance of its host", source)]


# ── Azure ──


class _Event(msgspec.Struct, rename="pascal"):
    event_type: str
    event_status: str = ""
    resources: list[str] = []
    not_before: str = ""  # empty once it has started
    description: str = ""


class _Events(msgspec.Struct, rename="pascal"):
    events: list[_Event]


EVENTS = {
    "Preempt": "the spot instance is reclaimed",
    "Terminate": "the cloud is about to remove it",
    "Redeploy": "the cloud is about to move it",
    "Reboot": "the cloud is about to reboot it",
}
"""As AKS' conditions of the same names are told; `Freeze` is a pause of some seconds."""


def _scheduled(text: str, own: str) -> list[CloudNotice]:
    return [
        CloudNotice(
            EVENTS.get(one.event_type, "the machine is paused for some seconds"),
            f"scheduledevents: {one.event_type}, {one.event_status or 'Scheduled'}"
            + (f", {one.description}" if one.description else ""),
            parsedate_to_datetime(one.not_before).timestamp() if one.not_before else None,
            leaves=one.event_type in EVENTS,
        )
        for one in _json(text, _Events).events
        if own in one.resources
    ]


# ── the table ──

CLOUDS: dict[str, Cloud] = {
    "aws": Cloud(
        "AWS",
        (
            MetadataQuestion("/latest/meta-data/spot/instance-action", _spot, True),
            MetadataQuestion("/latest/meta-data/events/maintenance/scheduled", _maintenance, True),
            MetadataQuestion(
                "/latest/meta-data/events/recommendations/rebalance", _rebalance, True
            ),
        ),
        has_token=True,
        vendors=(("sys_vendor", "Amazon EC2"), ("bios_version", "amazon")),
    ),
    "gcp": Cloud(
        "Google Cloud",
        (
            MetadataQuestion("/computeMetadata/v1/instance/preempted", _preempted),
            MetadataQuestion("/computeMetadata/v1/instance/maintenance-event", _host_maintenance),
        ),
        headers={"Metadata-Flavor": "Google"},
        signed=("metadata-flavor", "Google"),
        vendors=(("product_name", "Google Compute Engine"),),
    ),
    "azure": Cloud(
        "Azure",
        (MetadataQuestion("/metadata/scheduledevents?api-version=2020-07-01", _scheduled),),
        headers={"Metadata": "true"},
        own_name="/metadata/instance/compute/name?api-version=2021-02-01&format=text",
        vendors=(("chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77"),),
    ),
}
"""What DMI says of a machine is what cloud-init goes by (tools/ds-identify); nobody is asked."""


def cloud_of(root: Path) -> str:
    """Key of the cloud that this machine is one of, by its DMI; empty where it is none of them."""
    for key, cloud in CLOUDS.items():
        if any(words in text_of(root / DMI / file) for file, words in cloud.vendors):
            return key
    return ""


class CloudSession:
    """Asks one cloud, and keeps what each question needs: a token, or the machine's own name."""

    def __init__(self, cloud: Cloud, service: MetadataService) -> None:
        self._cloud, self._service = cloud, service
        self._token = self._own = ""

    def ask(self, question: MetadataQuestion) -> list[CloudNotice]:
        """What is announced now. Raises `OSError`, or `ValueError` for what is not documented."""
        if self._cloud.own_name and not self._own:
            self._own = _found(self._get(self._cloud.own_name), self._cloud.own_name).strip()
        answer = self._get(question.path)
        if answer.status == 404 and question.may_be_missing:
            return []
        return question.read(_found(answer, question.path), self._own)

    def _get(self, path: str) -> MetadataAnswer:
        answer = self._service.ask(path, self._headers())
        if answer.status == 401 and self._cloud.has_token:  # it has expired, or the machine is anew
            self._token = ""
            answer = self._service.ask(path, self._headers())
        name, value = self._cloud.signed
        if name and answer.headers.get(name) != value:
            raise OSError(f"{path} was not answered by the metadata service: no {name}: {value}")
        return answer

    def _headers(self) -> Mapping[str, str]:
        if not self._cloud.has_token:
            return self._cloud.headers
        if not self._token:
            path = "/latest/api/token"
            asked = {f"{TOKEN}-ttl-seconds": str(TOKEN_S)}
            self._token = _found(self._service.ask(path, asked, "PUT"), path).strip()
        return {TOKEN: self._token}


def _found(answer: MetadataAnswer, path: str) -> str:
    if answer.status != 200:
        raise OSError(f"HTTP {answer.status} for {path}")
    return answer.text


def _one_of(text: str, *words: str) -> str:
    said = text.strip()
    if said not in words:
        raise ValueError(f"{said[:40]!r} is none of {', '.join(words)}")
    return said


def _json(text: str, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{error}: {text[:60]!r}") from error


def _iso(text: str) -> float:
    return calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%SZ"))

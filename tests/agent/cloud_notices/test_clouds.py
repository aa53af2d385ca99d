"""What three clouds announce of a machine is told as it is meant, and by silence nothing is."""

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.agent.cloud_notices import metadata, provider
from holdfast.agent.cloud_notices.clouds import CLOUDS, cloud_of
from holdfast.agent.cloud_notices.provider import LEAVES, NONE, TOLD, MetadataWatch, find, url_of
from holdfast.agent.health.provider import Missing
from holdfast.detection.health import CALM_S, Conditions, Reading
from holdfast.events import Severity
from tests.metadata_service import (
    AZURE,
    AZURE_NAME,
    MAINTENANCE,
    PREEMPTED,
    REBALANCE,
    SCHEDULED,
    SPOT,
    MetadataStub,
    aws_event,
    azure_event,
    spot_action,
)

NOW = 1_790_000_000.0  # 2026-09-21 14:13:20 UTC


@pytest.fixture
def service() -> Iterator[MetadataStub]:
    stub = MetadataStub()
    yield stub
    stub.close()


class Scene:
    """A watch over the stub, with a clock that the test sets."""

    def __init__(self, service: MetadataStub, cloud: str, timeout_s: float = 30.0) -> None:
        self.now, self.said = NOW, list[str]()
        self.watch = MetadataWatch(CLOUDS[cloud], service.url, self.said.append, lambda: self.now)
        self.watch._session._service._timeout_s = timeout_s

    def told(self) -> list[tuple[str, str]]:
        return [(one.kind, one.text) for one in self.watch.read()]

    def goes_at(self) -> float | None:
        return self.watch.leaves_at

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.told()]


def events(*found: object) -> str:
    return json.dumps({"DocumentIncarnation": 2, "Events": found})


# ── AWS ──


def test_a_spot_instance_that_is_reclaimed_leaves_at_the_time_that_aws_says(
    service: MetadataStub,
) -> None:
    scene = Scene(service, "aws")
    assert scene.told() == [(NONE, "no notice")] and scene.goes_at() is None
    service.say(SPOT, spot_action(NOW + 120))
    [(kind, text)] = scene.told()
    assert kind == LEAVES and scene.goes_at() == NOW + 120
    assert text == (
        "the spot instance is reclaimed at 2026-09-21 14:15:20 UTC "
        "(AWS, spot/instance-action: terminate)"
    )
    assert service.tokens == 1, "one token serves for hours"


def test_a_token_that_is_not_valid_any_more_is_renewed(service: MetadataStub) -> None:
    scene = Scene(service, "aws")
    assert scene.kinds() == [NONE]
    service.valid.clear()
    service.say(SPOT, spot_action(NOW + 120, "stop"))
    assert scene.kinds() == [LEAVES] and service.tokens == 2


def test_a_rebalance_recommendation_is_told_and_announces_no_end(service: MetadataStub) -> None:
    scene = Scene(service, "aws")
    service.say(REBALANCE, json.dumps({"noticeTime": "2026-09-21T14:10:00Z"}))
    assert scene.kinds() == [TOLD] and scene.goes_at() is None


def test_maintenance_that_is_days_ahead_is_told_and_leads_to_a_hand_over_when_it_is_near(
    service: MetadataStub,
) -> None:
    scene = Scene(service, "aws")
    gone, done = aws_event(NOW, state="completed"), aws_event(NOW + 60, state="canceled")
    planned = aws_event(NOW + 86_400, "instance-retirement")
    service.say(SCHEDULED, json.dumps([gone, planned, done]))
    [(kind, text)] = scene.told()
    assert kind == TOLD and "to retire it at 2026-09-22 14:13:20 UTC" in text
    scene.now += 86_400 - provider.LEAD_S
    assert scene.kinds() == [LEAVES] and scene.goes_at() == NOW + 86_400


# ── Google Cloud ──


def test_a_preempted_instance_leaves_half_a_minute_after_it_was_told(
    service: MetadataStub,
) -> None:
    scene = Scene(service, "gcp")
    assert scene.kinds() == [NONE]
    service.say(PREEMPTED, "TRUE")
    assert scene.kinds() == [LEAVES] and scene.goes_at() == NOW + 30
    scene.now += 3
    assert scene.kinds() == [LEAVES] and scene.goes_at() == NOW + 30, "not ever later"


def test_host_maintenance_that_terminates_is_an_end_and_a_live_migration_is_none(
    service: MetadataStub,
) -> None:
    scene = Scene(service, "gcp")
    service.say(MAINTENANCE, "MIGRATE_ON_HOST_MAINTENANCE")
    assert scene.kinds() == [TOLD]
    service.say(MAINTENANCE, "TERMINATE_ON_HOST_MAINTENANCE\n")
    assert scene.kinds() == [LEAVES] and scene.goes_at() is None, "nobody says when"


def test_what_answers_in_googles_place_is_not_believed(service: MetadataStub) -> None:
    """A captive portal, or a proxy, answers everything."""
    scene = Scene(service, "gcp")
    service.flavor = "Other"
    service.say(PREEMPTED, "TRUE")
    with pytest.raises(OSError, match="was not answered by the metadata service"):
        scene.watch.read()


# ── Azure ──


@pytest.mark.parametrize("kind", ["Preempt", "Terminate", "Reboot", "Redeploy"])
def test_each_event_that_ends_an_azure_machine_leads_to_a_hand_over(
    service: MetadataStub, kind: str
) -> None:
    scene = Scene(service, "azure")
    service.say(AZURE, events(azure_event(kind, NOW + 40, "gpu-pool_3", "gpu-pool_4")))
    [(told, text)] = scene.told()
    assert told == LEAVES and f"(Azure, scheduledevents: {kind}, Scheduled)" in text
    assert scene.goes_at() == NOW + 40
    started = azure_event(kind, None, "gpu-pool_3", status="Started")
    service.say(AZURE, events(started))
    assert scene.kinds() == [LEAVES], "it has begun"


def test_a_pause_is_told_and_events_of_other_machines_of_the_set_are_not_ours(
    service: MetadataStub,
) -> None:
    scene = Scene(service, "azure")
    freeze = azure_event("Freeze", NOW + 900, "gpu-pool_3")
    service.say(AZURE, events(azure_event("Preempt", NOW + 30, "gpu-pool_30"), freeze))
    [(kind, text)] = scene.told()
    assert kind == TOLD and "paused for some seconds" in text and scene.goes_at() is None
    assert service.asked.count(AZURE_NAME) == 1, "the name does not change"


# ── what must not be ──


def test_silence_takes_no_notice_back_and_an_answer_does(service: MetadataStub) -> None:
    scene, conditions = Scene(service, "aws"), Conditions("n")
    service.say(SPOT, spot_action(NOW + 120))
    [change] = conditions.hear(scene.watch.read(), scene.now)
    assert change.severity is Severity.LEAVES and change.detail.startswith("its machine leaves: ")
    for status in (500, 503, 401, 403, 404):
        path = "/latest/api/token" if status == 401 else SPOT
        service.refuse("/latest" if status != 404 else "/nowhere", status)
        scene.now += CALM_S
        assert scene.kinds() == [LEAVES], (status, path)
        assert conditions.hear(scene.watch.read(), scene.now) == []
        service.refuse("/latest", None)
    service.say(SPOT, None)
    assert scene.kinds() == [NONE] and scene.goes_at() is None
    scene.now += CALM_S
    [over] = conditions.hear(scene.watch.read(), scene.now)
    assert (over.condition, over.severity) == (LEAVES, Severity.OK)


@pytest.mark.parametrize(
    ("cloud", "path", "texts"),
    [
        ("aws", SPOT, ("", "<html>", "[]", '{"action": "stop"}', '{"action":1,"time":"2"}')),
        ("aws", SPOT, ('{"action": "stop", "time": "soon"}',)),
        ("aws", SCHEDULED, ("{}", '[{"Code": "x"}]', '[{"Code":"x","NotBefore":"tomorrow"}]')),
        ("aws", REBALANCE, ("nonsense",)),
        ("gcp", PREEMPTED, ("", "true?", "<html>TRUE</html>")),
        ("gcp", MAINTENANCE, ("SOMETHING_NEW",)),
        ("azure", AZURE, ("", "[]", '{"Events": 3}', '{"Events": [{"Resources": []}]}')),
        (
            "azure",
            AZURE,
            (events(azure_event("Preempt", None, "gpu-pool_3") | {"NotBefore": "x"}),),
        ),
    ],
)
def test_garbage_is_no_notice_and_is_noted_once(
    service: MetadataStub, cloud: str, path: str, texts: tuple[str, ...]
) -> None:
    scene = Scene(service, cloud)
    before = scene.told()
    assert before == [(NONE, "no notice")]
    for text in texts:
        service.say(path, text)
        assert scene.goes_at() is None
        if len(CLOUDS[cloud].questions) > 1:
            assert scene.told() == before
            assert sum(path in line for line in scene.said) == 1
        else:
            assert scene.told() == [], "it has answered before: nobody is told at once"
            scene.now += provider.SILENT_S
            with pytest.raises(OSError, match="has not answered for more than"):
                scene.watch.read()
            service.say(path, events())
            assert scene.told() == before


def test_what_one_path_refuses_hides_nothing_of_another(service: MetadataStub) -> None:
    scene = Scene(service, "aws")
    service.refuse(REBALANCE, 403)
    service.refuse(SCHEDULED, 500)
    service.say(SPOT, spot_action(NOW + 120))
    assert scene.kinds() == [LEAVES] == scene.kinds()
    assert len([line for line in scene.said if "cannot be read" in line]) == 2


@pytest.mark.parametrize("cloud", [*CLOUDS])
def test_a_service_that_refuses_all_is_told_with_one_text_and_asked_less_often(
    service: MetadataStub, cloud: str
) -> None:
    scene = Scene(service, cloud)
    found = set()
    for status in (404, 401, 500):
        service.refuse("/", status)
        with pytest.raises(OSError, match="does not answer") as raised:
            scene.watch.read()
        found.add(str(raised.value))
    assert len(found) == 1 and "seen only as taints and signals" in found.pop()
    assert scene.watch.every_s == provider.UNHEARD_S and scene.said == []
    service.refuse("/", None)
    assert scene.kinds() == [NONE] and scene.watch.every_s == provider.LOOK_S
    assert scene.said == [
        f"agent: spot and maintenance notices are read from {CLOUDS[cloud].name}'s metadata "
        f"service ({service.url})"
    ]


@pytest.mark.parametrize("drips", [False, True])
def test_a_service_that_does_not_answer_in_time_is_left_and_asked_one_question(
    service: MetadataStub, drips: bool
) -> None:
    scene = Scene(service, "gcp", timeout_s=0.05)
    service.drips = drips
    if not drips:
        service.flows.clear()
    with pytest.raises(OSError, match="timed out"):
        scene.watch.read()
    assert service.asked == [PREEMPTED]


def test_neither_proxies_nor_redirections_are_followed_and_nothing_is_too_long(
    service: MetadataStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    scene = Scene(service, "gcp")
    assert scene.kinds() == [NONE]
    service.say(PREEMPTED, "TRUE")
    service.refuse(MAINTENANCE, 302)
    assert scene.kinds() == [LEAVES]
    assert service.asked.count(PREEMPTED) == 2, "by us"
    service.say(PREEMPTED, "x" * (metadata.MOST_BYTES + 1))
    assert scene.kinds() == [LEAVES]


def test_nobody_listens_there_or_what_listens_speaks_no_http(service: MetadataStub) -> None:
    service.close()
    with pytest.raises(OSError, match="does not answer"):
        Scene(service, "aws").watch.read()


# ── an agent that comes later ──


def test_an_end_that_was_over_when_the_agent_began_is_none_to_leave_for(
    service: MetadataStub,
) -> None:
    """Its machine has stayed. Else pod after pod would leave it."""
    scene = Scene(service, "aws")
    service.say(SPOT, spot_action(NOW - 10))
    assert scene.kinds() == [LEAVES], "it may go at any moment, so nobody takes a rank for it first"
    assert scene.goes_at() is None


def test_the_first_of_several_ends_counts(service: MetadataStub) -> None:
    scene = Scene(service, "aws")
    service.say(SPOT, spot_action(NOW + 120))
    service.say(SCHEDULED, json.dumps([aws_event(NOW + 60), aws_event(NOW + 600)]))
    assert scene.kinds() == [LEAVES] * 3 and scene.goes_at() == NOW + 60


# ── which cloud ──


@pytest.mark.parametrize(
    ("files", "cloud"),
    [
        ({"sys_vendor": "Amazon EC2\n"}, "aws"),
        ({"sys_vendor": "Xen", "bios_version": "4.11.amazon"}, "aws"),
        ({"sys_vendor": "Google", "product_name": "Google Compute Engine\n"}, "gcp"),
        ({"chassis_asset_tag": "7783-7084-3265-9085-8269-3286-77\n"}, "azure"),
        ({"sys_vendor": "Microsoft Corporation", "chassis_asset_tag": "None"}, ""),  # Hyper-V
        ({"sys_vendor": "LENOVO", "product_name": "20XW"}, ""),
        ({}, ""),
    ],
)
def test_the_firmware_says_whose_machine_it_is_and_nobody_is_asked(
    tmp_path: Path, files: dict[str, str], cloud: str
) -> None:
    folder = tmp_path / "sys/class/dmi/id"
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    assert cloud_of(tmp_path) == cloud
    threads = threading.active_count()
    found = find(tmp_path, "auto")
    assert isinstance(found, Missing) is not bool(cloud)
    assert isinstance(find(tmp_path, "off"), Missing)
    assert isinstance(find(tmp_path, "gcp"), MetadataWatch), "whoever says so is believed"
    assert threading.active_count() == threads


def test_the_service_may_be_named_for_each_node() -> None:
    assert url_of({"HOLDFAST_METADATA_URL": "http://h/{node}"}, "node-1") == "http://h/node-1"
    assert url_of({}, "node-1") == ""
    assert "HOLDFAST_METADATA_URL" not in os.environ


def test_the_condition_names_the_notice_that_it_is_of() -> None:
    reading = Reading(LEAVES, 1.0, "spot/instance-action: terminate", "x")
    [change] = Conditions("n").hear([reading], 0.0)
    assert change.device == reading.device and change.severity is Severity.LEAVES

"""The page of a report: all of it there, nothing of it anybody's code, in one file."""

import itertools
import re
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

import recorded_job
from holdfast.dashboard.job_record import JobRecord
from holdfast.reporting import words
from holdfast.reporting.gather import command, gathered
from holdfast.reporting.page import TOLD_MAX, page
from holdfast.reporting.shapes import JobReport
from holdfast.spec import job_from_dict

NOW = 1_800_000_000.0
DAYS = 1.5
EVIL = (
    "</pre><script>alert(1)</script><img src=http://evil.example/x onerror=alert(2)>\x1b[31m\udc80"
)
ALONE = {"meta", "link", "br"}  # tags that have no end


class Tags(HTMLParser):
    """Notes what is open, and every tag with its attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in ALONE:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> JobReport:
    """Of a job with incidents, a curve and a price."""
    folder = tmp_path_factory.mktemp("jobs") / "gpt"
    recorded_job.record(folder, days=DAYS, nodes=4, until=NOW, rate=2000.0)
    recorded_job.draw_curve(folder, 9000, begin=NOW - DAYS * 86_400, end=NOW)
    return gathered(JobRecord(folder), NOW)[0]


def read(text: str) -> Tags:
    tags = Tags()
    tags.feed(text)
    tags.close()
    assert not tags.open
    return tags


def test_a_page_has_what_the_report_has_and_asks_nobody(report: JobReport) -> None:
    text = page(report)
    tags = read(text)
    assert report.cost is not None
    for told in (words.share(report.goodput.ettr), words.money(report.cost.total)):
        assert told in text
    for one in report.causes:
        assert one.cause in text
    for found in report.incidents:
        assert f"incident {found.incident.id}:" in text
    links = [value for _, a in tags.seen for k, value in a.items() if k in ("src", "href")]
    assert links == ["data:,"] and "script" not in {tag for tag, _ in tags.seen}
    assert not re.search(r"https?://|@import|url\(", text)


def test_pictures_are_sound_and_stay_inside(report: JobReport) -> None:
    pictures = re.findall(r"<svg.*?</svg>", page(report), re.DOTALL)
    assert len(pictures) == 2
    for text in pictures:
        drawn = ElementTree.fromstring(text)
        _, _, width, height = map(float, drawn.attrib["viewBox"].split())
        for line in drawn.iter("polyline"):
            places = [tuple(map(float, p.split(","))) for p in line.attrib["points"].split()]
            assert len(places) > 100
            assert all(0 <= x <= width and 0 <= y <= height for x, y in places)
        rects = [(float(r.attrib["x"]), float(r.attrib["width"])) for r in drawn.iter("rect")]
        assert all(x >= 0 and x + w <= width + 1 for x, w in rects)


def test_the_account_adds_up_in_time_and_money(report: JobReport) -> None:
    assert sum(report.goodput.buckets.values()) == pytest.approx(report.goodput.wall_s, abs=1e-3)
    stretches = report.ribbon
    assert stretches[0].start_s == 0 and stretches[-1].end_s == report.goodput.wall_s
    assert all(a.end_s == b.start_s for a, b in itertools.pairwise(stretches))
    assert report.cost is not None
    assert report.cost.total == pytest.approx(report.cost.productive + report.cost.unproductive)
    assert report.cost.total == pytest.approx(DAYS * 24 * report.cost.per_hour)
    lost = sum(one.lost_s for one in report.causes)
    assert lost == pytest.approx(sum(one.incident.lost_s for one in report.incidents))


def test_what_others_wrote_is_text_and_nothing_else(report: JobReport) -> None:
    first = report.incidents[0]
    hostile = msgspec.structs.replace(
        first.incident, summary=EVIL, cause=EVIL, node=EVIL, nodes=(EVIL,), traceback=EVIL * 50
    )
    evil = msgspec.structs.replace(first, incident=hostile, advice=EVIL)
    shown = msgspec.structs.replace(
        report,
        job=EVIL,
        incidents=(evil,),
        marks=tuple(msgspec.structs.replace(one, text=EVIL) for one in report.marks),
        setup=msgspec.structs.replace(report.setup, command=EVIL),
        incomplete=EVIL,
        changes_missing=EVIL,
    )
    text = page(shown)
    tags = {tag for tag, _ in read(text).seen}
    assert not tags & {"script", "img"} and "\x1b" not in text
    assert "&lt;script&gt;" in text and "\\x1b" in text
    text.encode("utf-8", "strict")


def test_of_many_incidents_the_costly_are_told_at_length(report: JobReport) -> None:
    many = [
        msgspec.structs.replace(one, incident=msgspec.structs.replace(one.incident, id=n))
        for n, one in enumerate(report.incidents * 200, 1)
    ]
    text = page(msgspec.structs.replace(report, incidents=tuple(many)))
    assert text.count("<h3>") == TOLD_MAX
    assert f"Of {len(many)} incidents the newest follow" in text
    assert len(text) < 1 << 20


def test_a_job_that_has_told_nothing_has_a_page_too(tmp_path: Path) -> None:
    folder = tmp_path / "young"
    recorded_job.record(folder, days=0.001, nodes=1, until=time.time(), rate=0.0)
    found, _ = gathered(JobRecord(folder), time.time())
    assert found.curve is None and found.curve_missing
    assert "There is no curve" in page(found) and "there were no incidents" in page(found)


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"script": "a b.py", "args": ["--lr", "1"]}, "python 'a b.py' --lr 1"),
        ({"module": "pkg.train"}, "python -m pkg.train"),
        ({"command": ["./tool", "x"]}, "./tool x"),
    ],
)
def test_a_command_is_told_as_one_would_type_it(spec: dict[str, object], told: str) -> None:
    assert command(job_from_dict({"name": "gpt", **spec}, where="test")) == told


def test_secrets_in_a_command_are_masked(tmp_path: Path) -> None:
    folder = tmp_path / "gpt"
    words = ["--api-key=abcdef0123456789", "--other", "k" * 40]
    given: dict[str, Any] = {"args": words, "env": {"WANDB_API_KEY": "k" * 40}}
    recorded_job.record(folder, days=0.01, nodes=1, until=NOW, rate=0.0, **given)
    told = gathered(JobRecord(folder), NOW)[0].setup.command
    assert "abcdef0123456789" not in told and "kkkk" not in told

"""The page of `holdfast report` in a browser, from a file: by day, by night, small and on paper.

Screenshots are kept in `build/screenshots` where more is asked for.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import recorded_job
from headless import Chromium
from holdfast.dashboard.job_record import JobRecord
from holdfast.reporting import changes as advised
from holdfast.reporting.gather import gathered
from holdfast.reporting.page import page
from tests.browser.browsers import chromium
from tests.more import MORE, sample
from tests.tidy.source import ROOT

pytestmark = [pytest.mark.slow, chromium]

SHOTS = ROOT / "build" / "screenshots"
EVIL = "<script>document.title = 'taken'</script><img src=http://evil.example/x onerror=alert(1)>"
DRAWN = "document.querySelectorAll('svg polyline, svg rect').length"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """One for all tests."""
    made = Chromium(tmp_path_factory.mktemp("chromium"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page, with what somebody wrote who means harm."""
    folder, now = tmp_path_factory.mktemp("jobs") / "gpt", time.time()
    recorded_job.record(folder, days=1.5, nodes=4, until=now, rate=800.0)
    recorded_job.draw_curve(folder, 12_000, begin=now - 130_000, end=now)
    found, look = gathered(JobRecord(folder), now)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(advised, "SEEDS", advised.SEEDS_LEAST)
        changes = advised.what_to_change(look)
    assert not isinstance(changes, str)
    first, *others = found.incidents
    evil = msgspec.structs.replace(first.incident, traceback=f"{EVIL}\n" * 3, summary=EVIL)
    incidents = (msgspec.structs.replace(first, incident=evil), *others)
    whole = msgspec.structs.replace(found, incidents=incidents, changes=changes)
    path = folder.parent / "report.html"
    path.write_text(page(whole))
    return path


@pytest.mark.parametrize(("dark", "width"), sample([(True, 400)], [(False, 1280), (True, 1280)]))
def test_it_is_whole_without_a_script_or_a_request(
    browser: Chromium, file: Path, dark: bool, width: int
) -> None:
    shown = browser.page(width=width, height=900, dark=dark)
    shown.open(file.as_uri())
    shown.wait(f"document.readyState === 'complete' && {DRAWN} > 10")
    assert shown.run("document.title") == "gpt: report"
    assert shown.run("document.querySelectorAll('script, img').length") == 0
    assert EVIL in shown.text() and "What to change" in shown.text()
    assert shown.run("document.documentElement.scrollWidth") == width
    paper = "rgb(20, 24, 26)" if dark else "rgb(251, 251, 250)"
    assert shown.run("getComputedStyle(document.body).backgroundColor") == paper
    if MORE:
        shown.screenshot(SHOTS / f"report-{'dark' if dark else 'light'}-{width}.png")
    shown.call("Emulation.setEmulatedMedia", media="print")
    assert shown.run("getComputedStyle(document.body).backgroundColor") == "rgb(251, 251, 250)"
    assert (shown.complaints, shown.asked) == ([], [file.as_uri()])
    shown.close()

"""The page in a browser: each picture of a recorded and of a live job, in light and in dark.

Screenshots are kept in `build/screenshots` where more is asked for.
"""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import recorded_job
from headless import Chromium, Make, Tab
from holdfast.drivers import client
from tests.browser.browsers import chromium
from tests.browser.serving import ServedPage
from tests.end_to_end.local.jobs import TOGETHER, RunningJob, small
from tests.more import MORE, long
from tests.tidy.source import ROOT

pytestmark = [pytest.mark.slow, chromium]

SHOTS = ROOT / "build" / "screenshots"
SCREEN = {"width": 1280, "height": 900, "deviceScaleFactor": 1, "mobile": False}
HOSTILE = "<img src=x onerror=alert(1)>"
EVIL = [f"<script>alert('{n}')</script>{HOSTILE}\x1b[31m red" for n in range(3)]
PICTURES = ("time", "learning", "slow", "happened", "where")
RENEWED = """import('/static/dom.js').then(({el, renew}) => {
  const place = document.createElement('div');
  document.body.append(place);
  const box = (job) => el('input', {type: 'checkbox', 'aria-label': job});
  const draw = (n, job) => renew(place, el('details', {class: `n${n}`}, el('summary', {}, 'all'),
    el('a', {href: '#/'}, `rank ${n}`)), box(job), n < 3 && el('p', {style: {width: `${n}px`}}, n));
  draw(1, 'a');
  const [old, field] = [place.querySelector('a'), place.querySelector('input')];
  place.firstChild.open = true;
  old.focus();
  draw(2, 'a');
  const kept = place.querySelector('input') === field, width = place.querySelector('p').style.width;
  draw(3, 'b');
  const found = [place.firstChild.open, document.activeElement === old, old.innerText, kept, width,
    place.firstChild.className, place.querySelector('input') === field, place.querySelector('p')];
  place.remove();
  return found;
})"""
PAINTED = """(id => {
  const canvas = document.querySelector(`#${id} canvas`);
  if (!canvas || !canvas.width) return 0;
  const again = new OffscreenCanvas(canvas.width, canvas.height);
  const copy = again.getContext('2d', {willReadFrequently: true});
  copy.drawImage(canvas, 0, 0);
  const data = copy.getImageData(0, 0, canvas.width, canvas.height).data;
  const seen = new Set();
  for (const pixel of new Uint32Array(data.buffer)) if (pixel >>> 24) seen.add(pixel);
  return seen.size;
})"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """One for all tests."""
    made = Chromium(tmp_path_factory.mktemp("chromium"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def usual(browser: Chromium) -> Iterator[Tab]:
    """The page of all tests that ask for nothing special: each one costs a process."""
    shown = browser.page()
    yield shown
    shown.close()


@pytest.fixture
def tab(browser: Chromium, usual: Tab) -> Iterator[Make]:
    """Makes pages, and fails if one of them complained or asked elsewhere."""
    made: list[Tab] = []

    def make(**options: object) -> Tab:
        made.append(browser.page(**options) if options else usual)  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.run("1")  # what was told meanwhile is noted
        complaints, asked = [*one.complaints], [*one.asked]
        foreign = [url for url in asked if not url.startswith(("http://127.0.0.1:", "about:"))]
        if one is usual:
            one.call("Emulation.setDeviceMetricsOverride", **SCREEN)
            one.open("about:blank")
            one.run("1")
            one.complaints.clear()
            one.asked.clear()
        else:
            one.close()
        assert not complaints and not foreign, (complaints, foreign)


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Finished, running, damaged and hostile ones."""
    home, now = tmp_path_factory.mktemp("jobs"), time.time()
    for name, nodes in (("gpt", 4), ("other", 2)):
        recorded_job.record(home / name, days=1.5, nodes=nodes, until=now, rate=800.0)
        recorded_job.draw_curve(home / name, 3_000 * nodes, begin=now - 130_000, end=now)
        recorded_job.draw_ranks(home / name, 8 * nodes, 40, end=now)
    log = home / "gpt" / "logs" / "attempt-1" / "rank-3.log"
    log.parent.mkdir(parents=True)
    log.write_text("\n".join(EVIL))
    whole = (home / "gpt" / "journal.jsonl").read_bytes()
    lines = whole.splitlines(keepends=True)
    damaged = {
        "truncated": whole[: len(whole) // 2],
        "flipped": b"".join([*lines[:20], lines[20].replace(b"e", b"f", 1), *lines[21:]]),
        "future": whole.replace(b'{"journal":2', b'{"journal":99', 1),
        HOSTILE: b"<script>alert(2)</script>",
    }
    for name, content in damaged.items():
        (home / name).mkdir()
        (home / name / "journal.jsonl").write_bytes(content)
    return home


@pytest.fixture(scope="module")
def page(jobs: Path) -> Iterator[ServedPage]:
    """Of these."""
    served = ServedPage(jobs)
    yield served
    served.close()


def pictures(shown: Tab) -> None:
    """All five are there, and drawn."""
    for section in PICTURES:
        assert shown.run(f"document.getElementById('{section}') !== null"), section
    shown.wait(f"{PAINTED}('time') > 1 && {PAINTED}('learning') > 2 && {PAINTED}('slow') > 1")
    assert "The whole account" in shown.text() and "Where the state is safe" in shown.text()


def whole(shown: Tab, name: str, width: int = 1280) -> None:
    """A screenshot of all of it, for people: with HOLDFAST_TEST_MORE=1."""
    if not MORE:
        return
    height = shown.run("document.documentElement.scrollHeight")
    screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    shown.call("Emulation.setDeviceMetricsOverride", **screen)
    shown.screenshot(SHOTS / f"{name}.png", whole=False)


def test_each_picture_of_a_recorded_job_is_drawn(page: ServedPage, tab: Make) -> None:
    shown = tab()
    shown.open(f"{page.url}#/job/gpt")
    shown.drawn("job/gpt")
    pictures(shown)
    assert shown.run("document.querySelectorAll('#learning .uplot').length") == 6
    assert shown.run("document.querySelectorAll('#happened tbody tr').length") > 3
    assert shown.run("document.querySelectorAll('#where .ranks a').length") == 32
    assert "rank 10 " in shown.run("document.querySelector('#slow .legend').innerText")
    whole(shown, "recorded-light")


def test_it_works_in_the_dark_and_at_400_pixels(page: ServedPage, tab: Make) -> None:
    shown = tab(width=400, height=800, dark=True)
    shown.open(f"{page.url}#/job/gpt")
    shown.drawn("job/gpt")
    pictures(shown)
    assert shown.run("document.documentElement.scrollWidth") == 400
    assert shown.run("getComputedStyle(document.body).backgroundColor") == "rgb(20, 24, 26)"
    whole(shown, "recorded-dark-400", 400)
    shown.press("t")
    assert shown.run("getComputedStyle(document.body).backgroundColor") == "rgb(251, 251, 250)"
    shown.call("Emulation.setEmulatedMedia", media="print")
    assert shown.run("getComputedStyle(document.querySelector('header')).display") == "none"


def test_zooming_shows_every_step(page: ServedPage, tab: Make) -> None:
    shown = tab()
    shown.open(f"{page.url}#/job/gpt")
    shown.drawn("job/gpt")
    shown.wait("document.querySelector('#learning p').innerText.includes('band')")
    shown.run("document.getElementById('learning').scrollIntoView()")
    box = json.loads(
        shown.run(
            "JSON.stringify(document.querySelector('#learning .u-over').getBoundingClientRect())"
        )
    )
    x, y = box["x"] + box["width"] * 0.3, box["y"] + 40
    shown.mouse("mouseMoved", x, y)
    shown.mouse("mousePressed", x, y, button="left", buttons=1, clickCount=1)
    shown.mouse("mouseMoved", x + 12, y, button="left", buttons=1)
    shown.mouse("mouseMoved", x + 25, y, button="left", buttons=1)
    shown.mouse("mouseReleased", x + 25, y, button="left", clickCount=1)
    shown.wait("document.querySelector('#learning p').innerText.includes('every step')")
    shown.press("r")
    shown.wait("document.querySelector('#learning p').innerText.includes('Steps 0 to 11,999')")


def test_times_beside_the_ranks_are_where_their_columns_are(page: ServedPage, tab: Make) -> None:
    """Three looks, a pause of hours, then one that covers twice as much."""
    shown = tab()
    shown.open(page.url)
    head = {"at": [10, 20, 30, 10_000], "span_s": [10, 10, 10, 20]}
    places = shown.run(
        "import('/static/heat.js').then((heat) => [0, 5, 20, 25, 30, 31, 5000, 9980, 9990, 10000,"
        f" 10001].map((at) => heat.placeOf(at, {json.dumps(head)})))"
    )
    assert places == [0, 0.5, 2, 2.5, 3, None, None, 3, 3.5, 4, None]


def test_what_was_unfolded_or_has_the_focus_stays_so_when_figures_are_new(
    page: ServedPage, tab: Make
) -> None:
    """What belongs to another job or rank is another field or link, with its own handlers."""
    shown = tab()
    shown.open(page.url)
    shown.wait("document.querySelector('main td') !== null")
    assert shown.run(RENEWED) == [True, True, "rank 3", True, "2px", "n3", False, None]


def test_an_address_that_is_none_shows_the_fleet(page: ServedPage, tab: Make) -> None:
    shown = tab()
    shown.open(f"{page.url}#/job/%E0%A4%A")
    shown.wait("document.querySelector('main td a[href=\"#/job/gpt\"]') !== null")


def test_an_incident_is_told_and_a_key_leads_to_it(page: ServedPage, tab: Make) -> None:
    shown = tab()
    shown.open(f"{page.url}#/job/gpt")
    shown.drawn("job/gpt")
    shown.press("4")
    assert shown.run("document.activeElement.id") == "happened"
    shown.run("document.activeElement.blur()")
    shown.press("j")
    shown.call("Input.dispatchKeyEvent", type="keyDown", key="Enter")
    shown.wait("location.hash.includes('/incident/')")
    shown.wait("document.querySelector('ol.story') !== null")
    text = shown.text()
    assert "Story" in text and "its bill" in text and "Decisions and alternatives" in text
    whole(shown, "incident")


def test_what_a_rank_printed_is_text_whatever_it_is(page: ServedPage, tab: Make) -> None:
    shown = tab()
    shown.open(f"{page.url}#/job/gpt/rank/3")
    shown.drawn("job/gpt/rank/3")
    assert shown.run("document.querySelector('pre').textContent.split('\\n').length") == 3
    assert "<script>alert('2')</script>" in shown.text()
    assert shown.run("document.querySelectorAll('main script, main img').length") == 0


def test_damaged_foreign_and_hostile_records_hinder_no_other(page: ServedPage, tab: Make) -> None:
    shown = tab()
    shown.open(page.url)
    shown.drawn("fleet")
    shown.wait("!document.body.innerText.includes('reading')", "all are read")
    text = shown.text()
    assert "format 99" in text and HOSTILE in text and "not a header" in text
    assert shown.run("document.querySelectorAll('main img').length") == 0
    whole(shown, "fleet")
    shown.run("location.hash = '#/job/flipped'")
    shown.wait("document.body.innerText.includes('Incomplete: ')")
    shown.run("location.hash = '#/job/truncated'")
    shown.drawn("job/truncated")
    assert "The whole account" in shown.text()


def test_pictures_without_figures_hinder_no_other(page: ServedPage, browser: Chromium) -> None:
    """As in a cluster where the controller is gone; that the browser notes the refusal is right."""
    shown = browser.page()
    stub = "((f) => (url, how) => f(url.replace('figures/', 'figures/no/'), how))(window.fetch)"
    shown.call("Page.addScriptToEvaluateOnNewDocument", source=f"window.fetch = {stub}")
    shown.open(f"{page.url}#/job/gpt")
    shown.drawn("job/gpt")
    assert shown.text().count("there are no such figures") == 2
    assert "The whole account" in shown.text() and "Where the state is safe" in shown.text()
    shown.close()


def test_two_jobs_are_compared(page: ServedPage, tab: Make) -> None:
    shown = tab()
    shown.open(f"{page.url}#/compare/gpt/other")
    shown.drawn("compare/gpt/other")
    assert shown.run("document.querySelectorAll('.uplot').length") == 6
    assert shown.run("document.querySelectorAll('thead th').length") == 3
    whole(shown, "compare")


def test_a_stream_that_was_dropped_is_taken_up_again(jobs: Path, browser: Chromium) -> None:
    """What the browser says of the lost connection is no fault of the page."""
    served, shown = ServedPage(jobs), browser.page()
    try:
        shown.open(f"{served.url}#/job/other")
        shown.wait("document.getElementById('link').innerText === 'live'")
        served.close()
        shown.wait("document.getElementById('link').innerText.startsWith('not connected')")
        served = ServedPage(jobs, port=served.port)
        shown.wait("document.getElementById('link').innerText === 'live'")
        assert "The whole account" in shown.text()
    finally:
        shown.close()
        served.close()


@long
@pytest.mark.usefixtures("nothing_left")
def test_a_live_job_is_followed_through_a_fault(home: Path, tab: Make) -> None:
    job = small(home, args=["--steps", "100000"], **TOGETHER).start()
    served = ServedPage()
    try:
        job.wait_step(20)
        shown = tab()
        shown.open(f"{served.url}#/job/job")
        shown.drawn("job/job")
        step = (
            "Number(document.querySelectorAll('.facts dd')[2].firstChild.data.replaceAll(',', ''))"
        )
        before = shown.run(step)
        shown.wait(f"{step} > {before}", "news of a step")
        os.kill(job.worker(1), signal.SIGKILL)
        shown.wait("document.getElementById('happened').innerText.includes('worker-killed')")
        job.wait_step(before + 20, attempt=2)
        shown.wait(f"{PAINTED}('slow') > 1", "two looks at the ranks")
        pictures(shown)
        whole(shown, "live")
        _read_its_output(shown)
    finally:
        _stop(job)
        served.close()


def _read_its_output(shown: Tab) -> None:
    shown.run("document.querySelector('#where .ranks a').click()")
    shown.drawn("job/job/rank/0")
    shown.wait("document.querySelector('pre').innerText.length > 0", "what it has printed")


def _stop(job: RunningJob) -> None:
    assert job.process is not None
    job.process.send_signal(signal.SIGINT)
    job.process.wait()
    assert client.status(job.folder).outcome == "stopped"

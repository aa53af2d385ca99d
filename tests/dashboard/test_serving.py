"""Who may see the page, and that nobody changes anything through it."""

import contextlib
import itertools
import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import recorded_job
from holdfast.dashboard.stream import LOOK_S
from tests.browser.serving import ServedPage
from tests.patience import PATIENCE_S, until
from tests.warm import holdfast

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one job of half a day, and its figures."""
    home = tmp_path_factory.mktemp("jobs")
    now = time.time()
    recorded_job.record(home / "gpt", days=0.5, nodes=2, until=now, rate=2000.0)
    recorded_job.draw_curve(home / "gpt", 2_000, begin=now - 43_200, end=now)
    recorded_job.draw_ranks(home / "gpt", 16, 5, end=now)
    return home


@pytest.fixture(scope="module")
def page(jobs: Path) -> Iterator[ServedPage]:
    """Of these, on loopback."""
    served = ServedPage(jobs)
    yield served
    served.close()


def test_everything_that_is_known_is_told_in_the_shapes_of_the_command_line(
    page: ServedPage,
) -> None:
    (row,) = json.loads(page.ask("/api/fleet")[1])["jobs"]
    assert row["job"] == "gpt"
    told = json.loads(page.ask("/api/jobs/gpt")[1])
    assert told["status"]["job"] == "gpt" and told["dimensions"]["tp"] == 8
    assert sum(told["goodput"]["buckets"].values()) == pytest.approx(told["goodput"]["wall_s"])
    assert told["incidents"] and told["cost"] == pytest.approx(2.5 * 24 * 12, rel=0.01)
    ribbon = json.loads(page.ask("/api/jobs/gpt/ribbon")[1])
    assert ribbon[0][0] == told["from_ms"] and ribbon[-1][1] == told["to_ms"]
    assert all(a[1] == b[0] for a, b in itertools.pairwise(ribbon)), "without gaps"
    one = json.loads(page.ask("/api/jobs/gpt/incidents/1")[1])
    assert one["incident"]["id"] == 1 and one["advice"]
    curve = json.loads(page.ask("/api/jobs/gpt/figures/curve/0/end/100")[1])
    assert curve["last"] == 1_999 and len(curve["mean"]["loss"]) <= 101
    head, _, rest = page.ask("/api/jobs/gpt/figures/ranks/late/best")[1].partition("\n")
    assert json.loads(head)["ranks"] == 16 and rest


@pytest.mark.parametrize(
    "path",
    ["/api/jobs/none", "/api/jobs/..", "/api/jobs/%2e%2e%2f%2e%2e%2fetc", "/static/..%2fapp.py",
     "/api/jobs/gpt/incidents/99", "/api/jobs/gpt/figures/journal.jsonl",
     "/api/jobs/gpt/figures/curve/x/y/z", "/api/jobs/gpt/figures/ranks/mood/best",
     "/api/jobs/gpt/ribbon?from=-1", "/api/jobs/gpt/log/..%2f..%2fjob.json",
     "/static/../../journal.py"],
)  # fmt: skip
def test_what_there_is_not_is_not_found(page: ServedPage, path: str) -> None:
    status, body, _ = page.ask(path)
    assert status == 404 and "import" not in body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed(page: ServedPage, method: str) -> None:
    assert page.ask("/api/jobs/gpt", method)[0] == 405


@pytest.mark.parametrize("path", ["/", "/api/fleet", "/api/stream/gpt", "/static/main.js"])
def test_other_sites_get_nothing(page: ServedPage, path: str) -> None:
    rebound = page.ask(path, Host="evil.example")
    assert rebound[0] == 403 and "gpt" not in rebound[1]
    here = f"127.0.0.1:{page.port}"
    assert page.ask(path, Host=here, Origin="https://evil.example")[0] == 403
    assert (
        page.ask(path, Host=here, Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="no-cors")[0] == 403
    )


def test_a_browser_is_told_to_run_and_load_nothing_from_elsewhere(page: ServedPage) -> None:
    status, body, headers = page.ask("/", Host=f"localhost:{page.port}")
    assert status == 200 and "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert not re.findall(r"(?:src|href)=[\"']?(?:https?:)?//", body)
    assert headers["x-content-type-options"] == "nosniff"


def test_a_token_is_asked_for_where_others_could_reach_it(jobs: Path) -> None:
    page = ServedPage(jobs, "--token")
    try:
        assert (
            page.ask("/")[0] == page.ask("/api/fleet")[0] == page.ask("/static/main.js")[0] == 401
        )
        assert page.ask("/api/fleet", Authorization="Bearer nonsense")[0] == 401
        token = re.search(r"token for programs: (\S+)", page.said)
        assert token and page.ask("/api/fleet", Authorization=f"Bearer {token[1]}")[0] == 200
        (link,) = re.findall(r"open, once: \S+(/\?token=\S+)", page.said)
        status, _, headers = page.ask(link)
        cookie = headers["set-cookie"]
        assert status == 303 and "HttpOnly" in cookie and "SameSite=strict" in cookie
        assert page.ask("/api/fleet", Cookie=cookie.partition(";")[0])[0] == 200
        assert page.ask(link)[0] == 401, "a link works once"
        assert until(lambda: page.said.count("open, once") == 2), "and another one is told"
    finally:
        page.close()


def test_a_port_that_is_taken_is_said(jobs: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = holdfast("dashboard", str(jobs), "--port", str(port))
    assert done.returncode == 2 and "error[address-unusable]" in done.stderr
    assert "holdfast dashboard --port 0" in done.stderr


@pytest.mark.parametrize(
    ("words", "slug"),
    [(["/no/such/folder"], "usage"), (["--cluster-tokens"], "usage"),
     (["/", "--on", "kubernetes"], "usage"), (["--context", "x"], "usage")],
)  # fmt: skip
def test_what_makes_no_sense_is_said(words: list[str], slug: str) -> None:
    done = holdfast("dashboard", *words)
    assert f"error[{slug}]" in done.stderr and done.returncode == 2


def test_a_stream_tells_what_is_new_and_nothing_twice(page: ServedPage) -> None:
    """Who has heard the newest is told nothing by the next looks."""
    heard = _heard(page, "", 0.0)
    number = re.search(r"id: (\w+)", heard)
    assert number and '"job":"gpt"' in heard
    again = _heard(page, f"Last-Event-ID: {number[1]}\r\n", 2 * LOOK_S)
    assert again.partition("retry:")[2].strip("0123456789\r\n ") == ""


def _heard(page: ServedPage, header: str, more_s: float) -> str:
    """Up to the first event; with `more_s` from the beginning on for so long."""
    with socket.create_connection(("127.0.0.1", page.port), timeout=PATIENCE_S) as line:
        line.sendall(f"GET /api/stream/gpt HTTP/1.1\r\nHost: localhost\r\n{header}\r\n".encode())
        heard = b""
        while (b"retry: " if more_s else b"\ndata: ") not in heard or not heard.endswith(b"\n"):
            heard += line.recv(65_536)
        if more_s:
            line.settimeout(more_s)
            with contextlib.suppress(TimeoutError):
                heard += line.recv(65_536)
    return heard.decode()

"""What is scraped: series of the table as text, and the small HTTP server that hands it out.

Whoever has figures fills an `Exposition` when it is asked for; nothing is counted in between that
is not counted anyhow, so training pays for scrapes and not for metrics. Prometheus' own library
writes the text, OpenMetrics or the older format as the scraper wishes. It is imported at the first
scrape: an agent that nobody scrapes does without.

The server answers GET on the event loop of its host. Nobody can change anything through it, so no
token is asked for.
"""

import asyncio
import bisect
import contextlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, NamedTuple

from holdfast.monitoring.table import METRICS

if TYPE_CHECKING:
    from prometheus_client.core import Metric

REQUEST_S = 5.0
STATUS = {
    200: "OK",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
PLAIN = "text/plain; charset=utf-8"


class DurationTally:
    """How many durations were seen, by their length: a histogram that only grows."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        """One more."""
        self._counts[bisect.bisect_left(self._bounds, seconds)] += 1
        self.sum_s += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Upper bound as text, and how many there are up to it."""
        found, so_far = [], 0
        for bound, count in zip([*self._bounds, float("inf")], self._counts, strict=True):
            so_far += count
            found.append(("+Inf" if bound == float("inf") else str(bound), float(so_far)))
        return found


class WrittenLines:
    """Lines of families with many series, as they were written for the last scrape.

    A series for each node changes seldom, and writing one takes ten times as long as looking it up.
    What is new is written by the library as ever; what is no longer told is forgotten.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], dict[Hashable, bytes]] = {}

    def of(self, family: "Metric", kind: str, encode: "Encode") -> bytes:
        """A family in the format `kind` of `encode`."""
        known = self._known.get((kind, family.name), {})
        told: list[Hashable] = [(s.name, *s.labels.values(), s.value) for s in family.samples]
        fresh = [n for n, one in enumerate(told) if one not in known]
        if fresh or HEAD not in known:
            part = copy(family)
            part.samples = [family.samples[n] for n in fresh]
            lines = encode(FamilyList([part])).removesuffix(END).splitlines(keepends=True)
            begin = len(lines) - len(fresh)
            known = {**known, HEAD: b"".join(lines[:begin])}
            known |= zip((told[n] for n in fresh), lines[begin:], strict=True)
        shown = [HEAD, *told]
        found = [known[one] for one in shown]
        self._known[kind, family.name] = dict(zip(shown, found, strict=True))
        return b"".join(found)


class FamilyList(NamedTuple):
    """Families as the library asks for them."""

    families: "list[Metric]"

    def collect(self) -> "list[Metric]":
        """All of them."""
        return self.families


Encode = Callable[[FamilyList], bytes]
HEAD, END = "", b"# EOF\n"
MANY = 100  # series of a family, from which on lines are kept


class Exposition:
    """Series of one scrape. `everywhere` are labels that each of them has; `lines`: what was
    written for scrapes before."""

    def __init__(
        self, everywhere: Mapping[str, str] | None = None, lines: WrittenLines | None = None
    ) -> None:
        self._everywhere = dict(everywhere or {})
        self._lines = lines or WrittenLines()
        self._families: dict[str, Metric] = {}

    def add(self, name: str, value: float | None, /, **labels: str) -> None:
        """One number; None is nothing. Raises `KeyError` for what the table does not have."""
        if value is None:
            return
        row, family = METRICS[name], self._family(name)
        family.add_sample(row.scraped, self._labels(name, labels), value)

    def add_tally(self, name: str, tally: DurationTally) -> None:
        """A histogram."""
        family, labels = self._family(name), self._labels(name, {})
        for bound, count in tally.buckets():
            family.add_sample(f"{name}_bucket", {**labels, "le": bound}, count)
        family.add_sample(f"{name}_count", labels, count)
        family.add_sample(f"{name}_sum", labels, tally.sum_s)

    def _labels(self, name: str, labels: dict[str, str]) -> dict[str, str]:
        found = {**self._everywhere, **labels} if self._everywhere else labels
        if tuple(found) != METRICS[name].labels:
            raise KeyError(f"{name} has labels {METRICS[name].labels}, not {tuple(found)}")
        return found

    def _family(self, name: str) -> "Metric":
        if name not in self._families:
            from prometheus_client.core import Metric

            row = METRICS[name]
            self._families[name] = Metric(name, row.help, row.kind)
        return self._families[name]

    def collect(self) -> list["Metric"]:
        """All families, in the order of the table."""
        return [self._families[name] for name in METRICS if name in self._families]

    def page(self, accept: str = "") -> "ScrapePage":
        """As the scraper wants it."""
        from prometheus_client.exposition import choose_encoder

        encode, kind = choose_encoder(accept)
        families = self.collect()
        body = encode(FamilyList([one for one in families if len(one.samples) < MANY]))
        many = [one for one in families if len(one.samples) >= MANY]
        if many:
            end = END if body.endswith(END) else b""
            lines = [self._lines.of(one, kind, encode) for one in many]
            body = b"".join([body.removesuffix(END), *lines, end])
        return ScrapePage(200, body, kind)


class ScrapePage(NamedTuple):
    """An answer."""

    status: int
    body: bytes = b""
    kind: str = PLAIN


NOT_FOUND = ScrapePage(404)
Answerer = Callable[[str, str], ScrapePage]  # path and what is accepted


async def serve(host: str, port: int, answer: Answerer) -> asyncio.Server:
    """Answer from now on; port 0: any. Raises `OSError`."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
            async with asyncio.timeout(REQUEST_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(_response(_answered(head, answer)))
                await writer.drain()
        writer.close()

    return await asyncio.start_server(talk, host, port)


def port_of(server: asyncio.Server) -> int:
    """Where it listens."""
    return int(server.sockets[0].getsockname()[1])


def _answered(head: bytes, answer: Answerer) -> ScrapePage:
    first, *fields = head.decode(errors="replace").split("\r\n")
    method, _, rest = first.partition(" ")
    if method != "GET":
        return ScrapePage(405)
    pairs = (field.partition(":") for field in fields)
    accept = next((value for name, _, value in pairs if name.lower() == "accept"), "")
    try:
        return answer(rest.partition(" ")[0].partition("?")[0], accept.strip())
    except Exception as error:  # a figure that cannot be told ends no training
        return ScrapePage(500, f"{type(error).__name__}: {error}\n".encode())


def _response(page: ScrapePage) -> bytes:
    told = STATUS[page.status]
    body = page.body or f"{told}\n".encode()
    head = (
        f"HTTP/1.1 {page.status} {told}\r\nContent-Type: {page.kind}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body

"""One small request to a metadata service, bounded in time and size.

Neither proxies of the environment nor redirections are followed: both would lead a token, or a
question that only the machine itself may ask, elsewhere.
"""

import http.client
import time
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

TIMEOUT_S = 2.0  # such a service answers within milliseconds
MOST_BYTES = 256 * 1024
PART_BYTES = 16 * 1024


class MetadataAnswer(NamedTuple):
    """What came back, whatever it is."""

    status: int
    headers: Mapping[str, str]  # names in lower case
    text: str


class MetadataService:
    """The one at `url`, such as `http://169.254.169.254`; a path of it comes before all others."""

    def __init__(self, url: str, timeout_s: float = TIMEOUT_S) -> None:
        self.url = url.rstrip("/")
        self._parts: SplitResult = urlsplit(self.url)
        self._timeout_s = timeout_s

    def ask(
        self, path: str, headers: Mapping[str, str] | None = None, method: str = "GET"
    ) -> MetadataAnswer:
        """One request. Raises `OSError` where nothing, or nothing that is HTTP, comes in time."""
        end = time.monotonic() + self._timeout_s
        host, port = self._parts.hostname or "", self._parts.port or 80
        connection = http.client.HTTPConnection(host, port, timeout=self._timeout_s)
        try:
            connection.request(method, self._parts.path + path, headers=dict(headers or {}))
            response = connection.getresponse()
            told = {name.lower(): value for name, value in response.getheaders()}
            return MetadataAnswer(response.status, told, _read(response, end))
        except http.client.HTTPException as error:
            raise OSError(f"no valid HTTP response: {type(error).__name__}") from error
        finally:
            connection.close()


def _read(response: http.client.HTTPResponse, end: float) -> str:
    """All of the body, in parts: a body that drips is as good as none."""
    found = b""
    while part := response.read1(PART_BYTES):
        found += part
        if time.monotonic() > end:
            raise TimeoutError("timed out")
        if len(found) > MOST_BYTES:
            raise OSError(f"an answer of more than {MOST_BYTES} bytes")
    return found.decode(errors="replace")

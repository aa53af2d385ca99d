"""What the API server hands on to a Service: `GET .../services/NAME:PORT/proxy/PATH`."""

import asyncio
import re
from collections.abc import Callable
from typing import NamedTuple

from tests.drivers.kubernetes.cluster.http import Answer
from tests.drivers.kubernetes.cluster.rbac import Wish
from tests.drivers.kubernetes.cluster.refusal import RefusalError

PATH = re.compile(r"/api/v1/namespaces/([^/]+)/services/([^/:]+):([^/]+)/proxy(/.*)?")
Find = Callable[[str, str, str], tuple[str, int] | None]  # namespace, Service, name of the port


class Behind(NamedTuple):
    """A question to a Service."""

    namespace: str
    service: str
    port: str
    path: str

    @property
    def wish(self) -> Wish:
        """What one needs the right to."""
        return Wish("get", "", "services/proxy", self.namespace, f"{self.service}:{self.port}")

    async def answer(self, find: Find) -> Answer:
        """That of a pod behind it. Raises `RefusalError` where there is none, or it is none."""
        target = find(self.namespace, self.service, self.port)
        if target is None:
            raise RefusalError(503, f'no endpoints available for service "{self.service}"')
        try:
            reader, writer = await asyncio.open_connection(*target)
            writer.write(f"GET {self.path} HTTP/1.1\r\nHost: {target[0]}\r\n\r\n".encode())
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            writer.close()
            return Answer(int(head.split()[1]), body)
        except (OSError, IndexError, ValueError) as error:
            raise RefusalError(503, f"error trying to reach service: {error}") from error


def service_behind(path: str) -> Behind | None:
    """The Service that a path is about."""
    found = PATH.fullmatch(path)
    return Behind(*found.groups(default="/")) if found else None

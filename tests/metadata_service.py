"""The metadata services of three clouds, on a port of this machine, as they answer on theirs.

Answers are those that the clouds document; what a service requires (a token, a header) is required
here, too. A service is below a path of its own, so that one server has one for each node.
"""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

SPOT = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
SCHEDULED = "/latest/meta-data/events/maintenance/scheduled"
PREEMPTED = "/computeMetadata/v1/instance/preempted"
MAINTENANCE = "/computeMetadata/v1/instance/maintenance-event"
AZURE = "/metadata/scheduledevents"
AZURE_NAME = "/metadata/instance/compute/name"


def iso(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


def dated(at: float) -> str:
    """As AWS' scheduled events have it."""
    return time.strftime("%d %b %Y %H:%M:%S GMT", time.gmtime(at))


def rfc(at: float) -> str:
    """As Azure has it."""
    return time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(at))


def spot_action(at: float, action: str = "terminate") -> str:
    return json.dumps({"action": action, "time": iso(at)})


def aws_event(at: float, code: str = "system-reboot", state: str = "active") -> dict[str, str]:
    return {
        "NotBefore": dated(at), "Code": code, "Description": "scheduled reboot",
        "EventId": "instance-event-0d59937288b749b32", "NotAfter": dated(at + 7200), "State": state,
    }  # fmt: skip


def azure_event(kind: str, at: float | None, *names: str, status: str = "Scheduled") -> Any:
    return {
        "EventId": "C7061BAC-AFDC-4513-B24B-AA5F13A16123", "EventStatus": status,
        "EventType": kind, "ResourceType": "VirtualMachine", "Resources": list(names),
        "NotBefore": rfc(at) if at is not None else "", "Description": "",
        "EventSource": "Platform", "DurationInSeconds": -1,
    }  # fmt: skip


class MetadataStub:
    """All three clouds; `say` what a path answers, `refuse` with a status, `stall` all of it."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}  # by path, also with the path of a node before it
        self.statuses: dict[str, int] = {}
        self.asked: list[str] = []
        self.tokens = 0
        self.valid: set[str] = set()
        self.flows = threading.Event()
        self.flows.set()
        self.drips = False
        self.flavor = "Google"
        self.say(PREEMPTED, "FALSE")
        self.say(MAINTENANCE, "NONE")
        self.say(AZURE, json.dumps({"DocumentIncarnation": 1, "Events": []}))
        self.say(AZURE_NAME, "gpu-pool_3")
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer._answer(self)

            def do_PUT(self) -> None:
                outer._answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def say(self, path: str, text: str | None) -> None:
        """What is answered from now on; None: there is nothing, as before a notice."""
        if text is None:
            self.texts.pop(path, None)
        else:
            self.texts[path] = text

    def refuse(self, path: str, status: int | None) -> None:
        """An HTTP status for a path, and all below; None: as usual again."""
        self.statuses.pop(path, None)
        if status is not None:
            self.statuses[path] = status

    def close(self) -> None:
        self.flows.set()
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        path, query = urlsplit(request.path).path, parse_qs(urlsplit(request.path).query)
        self.asked.append(path)
        self.flows.wait()
        status = next((s for p, s in self.statuses.items() if path.startswith(p)), None)
        if status is None:
            status, text = self._found(request, path, query)
        else:
            text = "refused"
        body = text.encode()
        request.send_response(status)
        if "/computeMetadata/" in path:
            request.send_header("Metadata-Flavor", self.flavor)
        if status in (301, 302):
            request.send_header("Location", f"{self.url}{PREEMPTED}")
        request.send_header("Content-Length", str(len(body) + self.drips))
        request.end_headers()
        request.wfile.write(body)
        if self.drips:
            self.flows.clear()
            self.flows.wait()

    def _found(
        self, request: BaseHTTPRequestHandler, path: str, query: dict[str, list[str]]
    ) -> tuple[int, str]:
        own = next((p for p in self.texts if path == p), None)
        if path.endswith("/latest/api/token"):
            if request.command != "PUT" or "X-aws-ec2-metadata-token-ttl-seconds" not in (
                request.headers
            ):
                return 400, "Bad Request"
            self.tokens += 1
            self.valid.add(f"token-{self.tokens}")
            return 200, f"token-{self.tokens}"
        if "/latest/" in path and request.headers["X-aws-ec2-metadata-token"] not in self.valid:
            return 401, "Unauthorized"
        if "/computeMetadata/" in path and request.headers["Metadata-Flavor"] != "Google":
            return 403, "Missing Metadata-Flavor:Google header."
        if "/metadata/" in path and (
            request.headers["Metadata"] != "true" or not query.get("api-version")
        ):
            return 400, '{"error": "Bad request. api-version is invalid or was not specified"}'
        return (200, self.texts[own]) if own is not None else (404, "Not Found")

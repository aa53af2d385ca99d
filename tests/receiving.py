"""A web server that takes what notifications, trackers and OpenTelemetry post."""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Receiving:
    """A web server that answers with the next of `answers`, then 200, and keeps what it got, as
    `read` of path and body. The answer `HANGS` comes when the server is closed."""

    HANGS = 0

    def __init__(
        self, read: Callable[[str, bytes], Any] = lambda _, body: json.loads(body), port: int = 0
    ) -> None:
        self.answers: list[int] = []
        self.got: list[tuple[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self._closed = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                answer = outer.answers.pop(0) if outer.answers else 200
                if answer == outer.HANGS:
                    outer._closed.wait()
                    return
                outer.headers.append({key.lower(): value for key, value in self.headers.items()})
                outer.got.append((self.path, read(self.path, body)))
                self.send_response(answer)
                self.send_header("Location", "/elsewhere")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._closed.set()
        self._server.shutdown()
        self._server.server_close()

"""`holdfast dashboard` in a process of its own, and questions to it without a browser."""

import http.client
import os
import re
import subprocess
import threading
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE_S, until
from tests.warm import Warm

URL = re.compile(r"http://127\.0\.0\.1:(\d+)/$", re.M)


class ServedPage:
    """The page of the jobs below a folder."""

    def __init__(self, *words: str | Path, port: int = 0, **variables: str) -> None:
        self.said = ""
        arguments = ["dashboard", *map(str, words), "--port", str(port)]
        self.process = Warm(
            arguments, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True, env={**os.environ, **variables},
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert until(lambda: URL.search(self.said) or not self._reader.is_alive()), self.said
        found = URL.search(self.said)
        assert found, self.said
        self.port = int(found[1])
        self.url = f"http://127.0.0.1:{self.port}/"

    def _read(self) -> None:
        for line in self.process.stderr or ():
            self.said += line

    def ask(
        self, path: str, method: str = "GET", **headers: str
    ) -> tuple[int, str, dict[str, str]]:
        """Status, body and headers (by lower-case names) of an answer. `_` in a name is `-`."""
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            given: dict[str, Any] = {k.replace("_", "-"): v for k, v in headers.items()}
            line.request(method, path, headers=given)
            answer = line.getresponse()
            told = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, answer.read().decode(errors="replace"), told
        finally:
            line.close()

    def close(self) -> None:
        """Stop it as Ctrl-C does."""
        self.process.terminate()
        self.process.wait()
        self._reader.join(PATIENCE_S)

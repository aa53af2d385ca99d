"""A headless Chromium, driven over its DevTools protocol: one process, a page for each look."""

import base64
import contextlib
import itertools
import json
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

PATIENCE_S = 300.0 * float(os.environ.get("HOLDFAST_TEST_PATIENCE", "1"))
NAMES = ("chromium", "chromium-browser", "google-chrome")
FOUND = next(filter(None, map(shutil.which, NAMES)), None)
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-extensions", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
    "--disable-dev-shm-usage", "--disable-crash-reporter", "--disable-default-apps",
    "--disable-sync", "--remote-debugging-port=0", "--mute-audio",
)  # fmt: skip


def until(condition: Callable[[], object]) -> bool:
    """Poll until it holds; False if it does not within our patience."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


class Chromium:
    """The browser."""

    def __init__(self, folder: Path) -> None:
        assert FOUND is not None
        profile = folder / "profile"
        command = [FOUND, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        temporary = folder / "t"  # of what it leaves behind
        temporary.mkdir(parents=True)
        quiet, environ = subprocess.DEVNULL, {**_plain(), "TMPDIR": str(temporary)}
        self._process = subprocess.Popen(command, stdout=quiet, stderr=quiet, env=environ)
        port = profile / "DevToolsActivePort"
        assert until(lambda: port.exists() and "\n" in port.read_text()), "it does not start"
        self._at = f"127.0.0.1:{port.read_text().splitlines()[0]}"

    def page(self, *, width: int = 1280, height: int = 900, dark: bool = False) -> "Tab":
        """A new page."""
        request = urllib.request.Request(f"http://{self._at}/json/new?about:blank", method="PUT")
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            target = json.load(answer)
        return Tab(target["webSocketDebuggerUrl"], width, height, dark)

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(PATIENCE_S)


def _plain() -> dict[str, str]:
    """Without what would make it a process of a test's job."""
    return {name: value for name, value in os.environ.items() if name != "HOLDFAST_HOME"}


class Tab:
    """One page: what it shows, and what went wrong in it."""

    def __init__(self, url: str, width: int, height: int, dark: bool) -> None:
        self._lines = contextlib.ExitStack()
        opened = connect(url, max_size=None, compression=None)
        self._socket: ClientConnection = self._lines.enter_context(opened)
        self._numbers = itertools.count(1)
        self.complaints: list[str] = []  # of console and network
        self.asked: list[str] = []  # every address that was asked for
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        still = {"name": "prefers-reduced-motion", "value": "reduce"}
        self.call("Emulation.setEmulatedMedia", features=[scheme, still])

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask and wait for the answer; what is told meanwhile is noted."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            told = json.loads(self._socket.recv(PATIENCE_S))
            if told.get("id") == number:
                assert "error" not in told, told["error"]
                found: dict[str, Any] = told["result"]
                return found
            self._note(told.get("method", ""), told.get("params", {}))
        raise AssertionError(f"no answer to {method}")

    def _note(self, method: str, told: dict[str, Any]) -> None:
        match method:
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(told["exceptionDetails"])[:600])
            case "Runtime.consoleAPICalled" if told["type"] in ("error", "warning", "assert"):
                self.complaints.append(json.dumps(told["args"])[:600])
            case "Log.entryAdded" if told["entry"]["level"] in ("error", "warning"):
                entry = told["entry"]
                self.complaints.append(f"{entry['text']} {entry.get('url', '')}")
            case "Network.requestWillBeSent":
                self.asked.append(told["request"]["url"])
            case "Page.javascriptDialogOpening":
                self.complaints.append("a dialog was opened")

    def open(self, url: str) -> None:
        """Go there."""
        self.call("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """The value of an expression on the page."""
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, script: str, what: str = "") -> Any:
        """Until the expression is true."""
        found: list[Any] = []

        def holds() -> bool:
            found[:] = [
                self.run(f"(() => {{ try {{ return {script} }} catch {{ return null }} }})()")
            ]
            return bool(found[0])  # null: the page is under way

        assert until(holds), f"never: {what or script}\n{self.text()[:2000]}\n{self.complaints}"
        return found[0]

    def drawn(self, path: str) -> None:
        """Until the page of this address is shown."""
        self.wait(f"document.getElementById('main')?.dataset.drawn === {path!r}", path)

    def text(self) -> str:
        """What can be read."""
        return str(self.run("document.body.innerText"))

    def press(self, key: str) -> None:
        """A key."""
        for kind in ("keyDown", "keyUp"):
            text = {"text": key} if len(key) == 1 and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, **text)

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """`mouseMoved`, `mousePressed`, `mouseReleased` or `mouseWheel`."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def screenshot(self, path: Path, *, whole: bool = True) -> Path:
        """What is seen, as a PNG."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(data))
        return path

    def close(self) -> None:
        """Leave the page."""
        self.call("Page.close")
        self._lines.close()


Make = Callable[..., Tab]

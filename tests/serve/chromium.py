"""A real headless Chromium, driven over a pair of pipes (`--remote-debugging-pipe`): no driver, no port, no other package."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

PATIENCE = 30.0
ENDS = (
    "import os, sys; a = sys.argv; os.dup2(int(a[1]), 3); os.dup2(int(a[2]), 4); os.execvp(a[3], a[3:])"  # 3 in, 4 out
)


def find_chromium() -> str | None:
    """Where Chromium is, if it is installed."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((place for place in map(shutil.which, names) if place), None)


class Chromium:
    """One browser with one tab; messages are JSON, each ended by a zero byte."""

    def __init__(self, program: str, profile: Path) -> None:
        to_read, self.to_write = os.pipe()
        self.from_read, from_write = os.pipe()
        high = [
            fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (to_read, from_write)
        ]  # clear of the ends Chromium wants
        options = [
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
            "--disable-background-networking", "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank",
        ]  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, "-c", ENDS, *map(str, high), program, *options],
            pass_fds=high, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for end in (to_read, from_write, *high):
            os.close(end)
        self.number, self.rest = 0, b""
        self.events: list[dict[str, Any]] = []
        self.session: str | None = None

    def __enter__(self) -> Chromium:
        pages = [one for one in self.call("Target.getTargets")["targetInfos"] if one["type"] == "page"]
        target = (pages or [self.call("Target.createTarget", url="about:blank")])[0]["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "DOM"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for end in (self.to_write, self.from_read):
            os.close(end)  # Chromium ends when its pipes do
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask for something and wait for the answer; events that come meanwhile are kept."""
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to_write, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            answer = self._next(end)
            if answer.get("id") == self.number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self.events.append(answer)
        raise AssertionError(f"no answer to {method}")

    def _next(self, end: float) -> dict[str, Any]:
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.from_read], [], [], max(0.0, end - time.monotonic()))
            assert ready, "Chromium says nothing"
            data = os.read(self.from_read, 2**16)
            assert data, "Chromium has ended"
            self.rest += data
        one, _, self.rest = self.rest.partition(b"\0")
        return json.loads(one)

    def run(self, script: str) -> Any:
        """The value of an expression in the page; a promise is awaited."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, (script, result["exceptionDetails"])
        return result["result"].get("value")

    def wait(self, script: str) -> None:
        """Until the expression is true."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if self.run(f"Boolean({script})"):
                return
            time.sleep(0.05)
        raise AssertionError(f"never true: {script}; the page reads: {self.run('document.body.innerText')[:800]}")

    def open(self, address: str) -> None:
        self.call("Page.navigate", url=address)
        self.wait(f"document.readyState === 'complete' && location.href.startsWith({json.dumps(address)})")

    def reload(self) -> None:
        self.run("window.old = true")
        self.call("Page.reload", ignoreCache=True)
        self.wait("document.readyState === 'complete' && !window.old")

    def choose_file(self, selector: str, path: Path) -> None:
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", files=[str(path)], nodeId=node)

    def screen(self, width: int, height: int = 900, *, dark: bool = False) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self, path: Path) -> None:
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))

    def complaints(self) -> list[str]:
        """Errors that the page or the browser logged, and exceptions nobody caught."""
        self.run("0")
        found = []
        for one in self.events:
            if one.get("method") == "Runtime.exceptionThrown":
                found.append(str(one["params"]["exceptionDetails"]))
            if one.get("method") == "Log.entryAdded" and one["params"]["entry"]["level"] == "error":
                found.append(one["params"]["entry"]["text"])
        return found

    def addresses(self) -> set[str]:
        """Everything the page asked for."""
        asked = [one["params"] for one in self.events if one.get("method") == "Network.requestWillBeSent"]
        return {one["request"]["url"] for one in asked}
